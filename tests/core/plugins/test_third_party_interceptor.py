"""A third-party distribution adds an interceptor by its entry point alone."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

HOOKS = """
from agl_core.plugins import InterceptorSpec, hookimpl

@hookimpl
def agl_interceptor():
    return InterceptorSpec("audit", "acme_audit.audit:Audit")
"""
AUDIT = """
import json, os
from agl_core.store import Interceptor

class Audit(Interceptor):
    watches = ("enqueue_many_rollouts", "dequeue_many_rollouts", "update_attempt")

    async def around(self, call, next):
        result = await next(call)
        worker = call.argument("worker_id") if call.name == "dequeue_many_rollouts" else None
        line = {"call": call.name, "pid": os.getpid(), "worker": worker, "found": bool(result)}
        with open(os.environ["AUDIT_FILE"], "a") as file:
            file.write(json.dumps(line) + "\\n")
        return result
"""
RUN = """
import asyncio, json, os, sys
import agl_core as agl

@agl.rollout
def agent(task: int, prompt_template: agl.PromptTemplate) -> float:
    return 0.5

if __name__ == "__main__":
    strategy, store = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    resources = {"prompt": agl.PromptTemplate(template="Add.", engine="f-string")}
    trainer = agl.Trainer(
        strategy=strategy, store=store, n_runners=2, initial_resources=resources
    )
    trainer.dev(agent, [1, 2, 3])
    print(os.getpid())
"""
SERVE = """
import asyncio, pickle
from agl_store_memory import InMemoryLightningStore
from agl_core.types import EnqueueRolloutRequest
from agl_store_http import LightningStoreClient, LightningStoreServer

async def main():
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    client, copy = LightningStoreClient(server.endpoint), pickle.loads(pickle.dumps(server))
    for store in (server, client, copy):
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=1)])
    for store in (client, copy, server):
        await store.close()

asyncio.run(main())
"""


@pytest.fixture
def acme(site: Any) -> Any:
    site.install(
        "acme-audit",
        entry_points={"interceptor.audit": "acme_audit.hooks"},
        modules={
            "acme_audit/__init__.py": "",
            "acme_audit/hooks.py": HOOKS,
            "acme_audit/audit.py": AUDIT,
        },
    )
    return site


def seen_by(site: Any, source: str, *arguments: Any, **environ: str) -> tuple[str, list[Any]]:
    program, file = site.path.parent / "program.py", site.path.parent / "audit.jsonl"
    program.write_text(source)
    texts = [json.dumps(each) for each in arguments]
    done = site.python(str(program), *texts, AUDIT_FILE=str(file), **environ)
    assert done.returncode == 0, done.stderr
    lines = file.read_text().splitlines() if file.exists() else []
    return done.stdout.strip(), [json.loads(line) for line in lines]


@pytest.mark.parametrize("strategy", ["shm", {"type": "cs", "server_port": 0}])
def test_it_sees_each_call_of_a_run_once(acme: Any, strategy: Any):
    pid, lines = seen_by(acme, RUN, strategy, "memory")
    calls = Counter((line["call"], line["found"]) for line in lines)
    assert calls["enqueue_many_rollouts", True] == 3, "one for each task"
    assert {line["pid"] for line in lines} == {int(pid)}, "the store is in the trainer's process"
    if strategy != "shm":  # there, runners call dequeue_rollout
        assert calls["dequeue_many_rollouts", True] == 3
        workers = {line["worker"] for line in lines if line["worker"]}
        assert workers <= {"Worker-0", "Worker-1"}, "one may claim all three"
        assert workers


def test_a_runner_with_a_store_of_its_own_makes_its_own(acme: Any):
    strategy = {"type": "cs", "managed_store": False}
    pid, lines = seen_by(acme, RUN, strategy, {"type": "sqlite", "path": "runs.db"})
    pids = {line["pid"] for line in lines if line["call"] == "update_attempt"}
    assert int(pid) not in pids
    assert pids
    assert sum(line["call"] == "enqueue_many_rollouts" for line in lines) == 3


def test_it_sees_each_call_of_a_server_once(acme: Any):
    _, lines = seen_by(acme, SERVE)
    assert [line["call"] for line in lines] == ["enqueue_many_rollouts"] * 3


def test_it_is_listed_and_can_be_switched_off(acme: Any):
    rows = json.loads(acme.agl("plugins", "list", "--json").stdout)
    found = [(r["kind"], r["name"], r["status"]) for r in rows if r["dist"] == "acme-audit"]
    assert found == [("interceptor", "audit", "ok")]
    _, lines = seen_by(acme, SERVE, AGL_DISABLE_PLUGINS="acme-audit")
    assert lines == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("audit:fails", "does not start: RuntimeError: no licence"),
        ("audit:wrong", "is broken: acme_broken.audit:wrong() is a int, not an Interceptor"),
        ("audit:Lost", "does not start: InvalidArgumentError: Lost cannot watch 'add_spam'"),
        ("audit:nothing", "does not load"),
    ],
)
def test_a_broken_one_is_left_out(acme: Any, target: str, message: str):
    acme.install(
        "acme-broken",
        entry_points={"interceptor.broken": "acme_broken.hooks"},
        modules={
            "acme_broken/__init__.py": "",
            "acme_broken/hooks.py": f"""
            from agl_core.plugins import InterceptorSpec, hookimpl

            @hookimpl
            def agl_interceptor():
                return InterceptorSpec("broken", "acme_broken.{target}")
            """,
            "acme_broken/audit.py": """
            from agl_core.store import Interceptor

            def fails():
                raise RuntimeError("no licence")

            def wrong():
                return 7

            class Lost(Interceptor):
                watches = ("add_spam",)

                async def around(self, call, next):
                    return await next(call)
            """,
        },
    )
    program = acme.path.parent / "serve.py"
    program.write_text(SERVE)
    file = acme.path.parent / "audit.jsonl"
    done = acme.python(str(program), AUDIT_FILE=str(file))
    assert done.returncode == 0, done.stderr
    assert "interceptor.broken of acme-broken 1.0" in done.stderr
    assert message in done.stderr
    assert len(file.read_text().splitlines()) == 3, "the other one works"
