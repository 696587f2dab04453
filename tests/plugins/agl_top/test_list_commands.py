"""``agl rollouts``, ``attempts``, ``workers`` and ``resources``."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Awaitable, Callable

import pytest

from agl_cli_kit import main
from agl_core.store import LightningStore
from agl_store_sqlite import SqliteLightningStore
from agl_top import listing
from agl_top.clock import StoreClock


def test_rollouts_are_listed_newest_first_with_reward_and_task(filled, agl):
    done = agl("rollouts", *filled.options)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["rollout", "status", "attempt", "reward", "took", "task"]
    assert [row.split()[0] for row in rows] == [
        filled.queued,
        filled.running,
        filled.failed,
        filled.done,
    ]
    assert "0.750" in rows[3]
    assert "task 0?[31m" in rows[3]
    assert "\x1b" not in done.stdout


def test_rollouts_are_filtered_sorted_and_limited(filled, agl):
    def ids(*options: str) -> list[str]:
        done = agl("rollouts", *filled.options, "--json", *options)
        return [item["rollout_id"] for item in json.loads(done.stdout)]

    assert ids("--status", "failed", "--status", "running") == [filled.running, filled.failed]
    assert ids("--contains", filled.done[4:]) == [filled.done]
    assert ids("--sort", "start_time", "--limit", "1") == [filled.done]
    assert ids("--sort", "-status")[0] == filled.done
    assert ids("--mode", "val") == []
    assert len(ids("--mode", "train", "--mode", "val")) == 3
    assert ids("--sort", "-reward")[0] == filled.done
    assert ids("--sort", "duration", "--mode", "train")[0] == filled.running
    short = agl("rollouts", *filled.options, "--limit", "1")
    assert "3 more" in short.stderr


def test_the_json_of_rollouts_has_all_fields_and_the_reward(filled, agl):
    items = json.loads(agl("rollouts", *filled.options, "--json").stdout)
    item = {each["rollout_id"]: each for each in items}[filled.done]
    assert item["reward"] == 0.75
    assert item["mode"] == "train"
    assert item["attempt"]["worker_id"] == "runner-0"


def test_an_unknown_field_to_sort_by_is_named_with_the_known_ones(filled, agl):
    done = agl("rollouts", *filled.options, "--sort", "colour")
    assert done.returncode != 0
    assert "colour" in done.stderr
    assert "start_time" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_attempts_of_a_rollout_and_of_all(filled, agl):
    one = json.loads(agl("attempts", filled.failed, *filled.options, "--json").stdout)
    assert [(each["rollout_id"], each["status"]) for each in one] == [(filled.failed, "failed")]
    all_of_them = agl("attempts", *filled.options)
    assert len(all_of_them.stdout.splitlines()) == 4
    assert "RoomNotFound: Birch" in all_of_them.stdout
    running = agl("attempts", *filled.options, "--status", "running", "--json")
    assert [each["rollout_id"] for each in json.loads(running.stdout)] == [filled.running]
    short = agl("attempts", *filled.options, "--limit", "2")
    assert len(short.stdout.splitlines()) == 3
    assert short.stderr == "there are more: raise --limit\n"
    unknown = agl("attempts", "ro-unknown", *filled.options)
    assert unknown.returncode != 0
    assert unknown.stderr == "agl: error: the store has no rollout 'ro-unknown'\n"


def test_attempts_read_no_more_rollouts_than_they_need(filled, agl, monkeypatch):
    from agl_top import lists

    monkeypatch.setattr(lists, "_PAGE", 1)
    asked: list[int] = []
    query = SqliteLightningStore.query_rollouts

    async def counted(self, **filters):
        asked.append(filters["limit"])
        return await query(self, **filters)

    monkeypatch.setattr(SqliteLightningStore, "query_rollouts", counted)
    found = json.loads(agl("attempts", *filled.options, "--limit", "1", "--json").stdout)
    assert [each["rollout_id"] for each in found] == [filled.running]
    # The newest waits, one is shown, and one is known to be left. A page begins with a known one.
    assert asked == [1, 2, 2]
    found = json.loads(agl("attempts", *filled.options, "--status", "succeeded", "--json").stdout)
    assert [each["rollout_id"] for each in found] == [filled.done]


def test_workers_show_their_load_and_what_they_do(filled, agl):
    done = agl("workers", *filled.options, "--status", "busy")
    assert len(done.stdout.splitlines()) == 2
    assert "cpu 31% gpu 88%" in done.stdout
    assert filled.running in done.stdout
    found = json.loads(agl("workers", *filled.options, "--contains", "-1", "--json").stdout)
    assert [each["worker_id"] for each in found] == ["runner-1"]


def test_a_worker_that_is_silent_is_unknown_in_every_form(filled, agl, monkeypatch):
    async def much_later(self: StoreClock, store: LightningStore) -> float:
        return await store.now() + 3600

    monkeypatch.setattr(StoreClock, "now", much_later)
    busy = agl("workers", *filled.options, "--status", "busy", "--json")
    assert json.loads(busy.stdout) == []
    listed = agl("workers", *filled.options, "--status", "unknown", "--limit", "1", "--json")
    assert [(each["worker_id"], each["status"]) for each in json.loads(listed.stdout)] == [
        ("runner-0", "unknown")
    ]
    shown = agl("workers", *filled.options, "--status", "unknown", "--limit", "1")
    assert "2 more: raise --limit" in shown.stderr
    assert "3 workers, 0 busy" in agl("top", *filled.options).stdout


def test_resources_are_listed_and_shown_without_keys(filled, agl):
    from agl_core.types import LLM

    llm = LLM(endpoint="http://127.0.0.1:1/v1", model="demo", api_key="sk-secret")
    filled.change(lambda store: store.update_resources("with-key", {"llm": llm}))
    done = agl("resources", *filled.options)
    assert done.stdout.splitlines()[1].split()[0] == "with-key"
    shown = agl("resources", "with-key", *filled.options)
    assert json.loads(shown.stdout)["resources"]["llm"]["model"] == "demo"
    listed = agl("resources", *filled.options, "--json")
    assert "sk-secret" not in shown.stdout + listed.stdout + done.stdout
    unknown = agl("resources", "none", *filled.options)
    assert unknown.returncode == 2
    assert "the store has no resources 'none'" in unknown.stderr


def test_a_store_that_is_missing_is_said_and_not_made(agl, tmp_path):
    done = agl("rollouts", "--path", "none.db")
    assert done.returncode == 2
    assert "there is no store none.db" in done.stderr
    assert not (tmp_path / "none.db").exists()


def test_watching_in_a_pipe_finds_changes_beyond_a_screen_of_items(filled, monkeypatch, capsys):
    newest: list[str] = []

    async def enqueue(store: LightningStore, count: int) -> None:
        newest.extend([(await store.enqueue_rollout(n)).rollout_id for n in range(count)])

    async def watch(store: LightningStore, show: Callable[[], Awaitable[object]], _: float) -> None:
        await show()
        await enqueue(store, 30)  # more than a list has
        await show()
        await store.update_rollout(filled.queued, status="cancelled")
        await show()

    monkeypatch.setattr(listing, "watch", watch)
    options = ["--status", "queuing", "--status", "cancelled", "--watch", "--json"]
    assert main(["rollouts", *filled.options, *options]) == 0
    told = capsys.readouterr()
    items = [json.loads(line) for line in told.out.splitlines()]
    assert [each["rollout_id"] for each in items] == [filled.queued, *newest[::-1], filled.queued]
    assert told.err == ""


def test_watching_fewer_than_there_are_says_so_once_and_tells_nothing_twice(
    filled, monkeypatch, capsys
):
    async def watch(store: LightningStore, show: Callable[[], Awaitable[object]], _: float) -> None:
        await show()
        newer = await store.enqueue_rollout("newer")
        for _ in range(2):
            await show()
        await store.update_rollout(newer.rollout_id, status="cancelled")
        await show()

    monkeypatch.setattr(listing, "watch", watch)
    options = ["--status", "queuing", "--limit", "1", "--watch"]
    assert main(["rollouts", *filled.options, *options]) == 0
    told = capsys.readouterr()
    assert [line.split()[-1] for line in told.out.splitlines()] == ["waits", "newer"]
    assert told.err == "agl: only the first 1 are watched: raise --limit\n"


@pytest.mark.parametrize("as_json", [True, False])
def test_watching_in_a_pipe_prints_what_is_new_or_changed(filled, started, as_json):
    options = ["--json"] if as_json else []
    process = started(
        "rollouts", *filled.options, "--watch", *options, stdout=subprocess.PIPE, text=True
    )
    first = [process.stdout.readline() for _ in range(4)]
    assert filled.queued in first[0]
    filled.change(lambda store: store.update_rollout(filled.queued, status="cancelled"))
    line = process.stdout.readline()
    assert filled.queued in line
    assert "cancelled" in line
    if as_json:
        assert json.loads(line)["status"] == "cancelled"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=20)
    assert (rest, process.returncode) == ("", 0)
