"""A workload from the records of a store, and the command."""

import asyncio
import io
import json
import re
import subprocess
import sys
from typing import Any

import pytest
import pytest_asyncio

from agl_cli_kit import main
from agl_core import semconv
from agl_core.errors import InvalidArgumentError
from agl_core.types import Attempt, Rollout, RolloutConfig, Span
from agl_simulate import fit
from agl_store_kit import Record
from agl_store_sqlite import SqliteLightningStore

CALL = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "q"}


class History:
    """Writes a past run into a store."""

    def __init__(self) -> None:
        self.records = []
        self.count = 0

    def attempt(
        self, created, begin, calls, end, *, worker="w", status: Any = "succeeded", sdk=False
    ):
        """Add a rollout with one attempt; calls are begins and ends."""
        self.count += 1
        ids: dict[str, Any] = {
            "rollout_id": f"ro-{self.count}",
            "attempt_id": f"at-{self.count}",
        }
        rollout = Rollout(
            rollout_id=ids["rollout_id"],
            input=self.count,
            start_time=created,
            end_time=end,
            status=status,
            config=RolloutConfig(max_attempts=3),
        )
        attempt = Attempt(
            **ids, sequence_id=1, start_time=begin, end_time=end, status=status, worker_id=worker
        )
        self.records += [
            Record("rollout", rollout.model_dump_json().encode()),
            Record("attempt", attempt.model_dump_json().encode()),
        ]
        for number, (first, last) in enumerate(calls):
            call = CALL | {"gen_ai.response.id": f"response-{number}"}
            self._span(ids, number, semconv.SPAN_MODEL_CALL, first, last, call)
            if sdk:  # the agent's SDK recorded the same call
                self._span(ids, 10 + number, "openai.chat", first - 0.1, last + 0.1, call)
        self._span(ids, 99, "agentlightning.annotation", end, end, {})

    def _span(self, ids, number, name, begin, end, attributes):
        span = Span.from_attributes(
            **ids,
            attributes=attributes,
            sequence_id=number + 1,
            span_id=f"{number:016x}",
            name=name,
            start_time=begin,
            end_time=end,
        )
        self.records.append(Record("span", span.model_dump_json().encode()))


def two_batches() -> History:
    """Two runners; two batches of three with an update of 5 s between them."""
    history = History()
    for start in (1000.0, 1015.0):
        history.attempt(start, start, [(start + 1, start + 3)], start + 4, worker="a", sdk=True)
        history.attempt(start, start, [(start + 1, start + 2)], start + 5, worker="b")
        later = start + 4.5
        calls = [(later + 1, later + 2), (later + 3, later + 4)]
        history.attempt(start, later, calls, start + 10, worker="a", status="failed")
    return history


@pytest_asyncio.fixture
async def store(tmp_path):
    store = SqliteLightningStore(tmp_path / "runs.db")
    yield store
    await store.close()


async def test_a_workload_is_what_the_records_say(store):
    await store.restore(two_batches().records)
    found = await fit(store, servers=2)
    assert sorted((tuple(p.steps), p.failed) for p in found.profiles) == [
        *[((1.0, 1.0, 1.0, 1.0, 1.5), True)] * 2,
        *[((1.0, 1.0, 3.0), False)] * 2,
        *[((1.0, 2.0, 1.0), False)] * 2,
    ]
    assert list(found.turnarounds) == [0.5, 0.5]
    assert list(found.updates) == [5.0]
    assert (found.batch, found.runners, found.servers, found.max_attempts) == (3, 2, 2, 3)
    assert (found.server_limit, found.most_calls) == (None, 2)


async def test_only_the_newest_rollouts_are_read(store):
    await store.restore(two_batches().records)
    found = await fit(store, newest=3)
    assert len(found.profiles) == 3
    assert found.batch is None
    assert list(found.updates) == []


async def test_parallel_calls_of_a_rollout_count_as_one(store):
    history = History()
    history.attempt(0.0, 10.0, [(11.0, 13.0), (12.0, 15.0), (16.0, 17.0)], 18.0)
    await store.restore(history.records)
    (profile,) = (await fit(store)).profiles
    assert tuple(profile.steps) == (1.0, 4.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
async def test_the_clock_of_the_runners_may_differ(store, ahead):
    past = History()
    past.attempt(0, 10, [(12 + ahead, 13 + ahead), (15 + ahead, 16 + ahead)], 18)
    await store.restore(past.records)
    (profile,) = (await fit(store)).profiles
    assert profile.steps == pytest.approx((2, 1, 2, 1, 2))


async def test_an_empty_store_is_refused(store):
    with pytest.raises(InvalidArgumentError, match="no rollout that has ended; run some first"):
        await fit(store)


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path):
    def run(*options, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "agl_cli_kit", "simulate", *options],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


async def test_the_command_prints_a_prediction_a_chart_and_advice(store, command, tmp_path):
    await store.restore(two_batches().records)
    await store.close()
    options = ["--store", "runs.db", "--runners", "16", "--batch", "32", "--rollouts", "3200"]
    text = command(*options, "--price", "server=2", "--chart", "chart.svg", "--server-limit", "4")
    assert "Recorded: 6 attempts of 4.83 s, 1.67 s of it in 1.3 model calls; 33.3% failed" in text
    assert "16 runners, 1 model server, batches of 32, in turns:" in text
    assert " rollouts/s" in text
    assert "per 1,000 rollouts" in text
    assert "       16 " in text
    assert "█" in text
    assert text.rstrip().splitlines()[-1].endswith(".")
    assert (tmp_path / "chart.svg").read_text().startswith("<svg ")

    found = json.loads(command(*options, "--mode", "overlap", "--json"))
    assert found["prediction"]["rollouts"] == 3200
    assert found["cluster"]["mode"] == "overlap"
    assert 0.9 < found["prediction"]["staleness"] < 1
    assert found["recorded"]["batch"] == 3
    assert [point["runners"] for point in found["by_runners"]][-1] == 32
    assert found["advice"]


class Screen(io.StringIO):
    """A terminal as standard error."""

    def isatty(self) -> bool:
        return True


async def test_a_terminal_shows_how_far_a_simulation_is(store, tmp_path, monkeypatch):
    await store.restore(two_batches().records)
    await store.close()
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    monkeypatch.setenv("TERM", "xterm")
    options = ["--store", str(tmp_path / "runs.db"), "--runners", "2", "--rollouts", "300"]
    assert await asyncio.to_thread(main, ["simulate", *options]) == 0
    assert re.search(r"rollouts .*300/300", screen.getvalue())


async def test_the_commands_errors_say_what_to_do(store, command):
    assert "run some first" in command("--store", "runs.db", code=2)
    assert "not 'gpu=1'" in command("--store", "runs.db", "--price", "gpu=1", code=2)
    assert "--mode open" in command("--arrivals", "3", "--mode", "sync", code=2)
