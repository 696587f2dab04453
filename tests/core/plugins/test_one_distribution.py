"""One distribution, installed by pip, that adds a kind, a replayer and an async listener."""

from __future__ import annotations

import json
import subprocess
import sys

HOOKS = """
from agl_core.plugins import ComponentSpec, HookSpec, KindSpec, ReplayerSpec, hookimpl

@hookimpl
def agl_kind():
    return KindSpec("judge", contract="acme_all.judges:Judge", summary="scores answers", api=1)

@hookimpl
def agl_judge():
    return ComponentSpec(kind="judge", name="strict", factory="acme_all.judges:Strict", api=1)

@hookimpl
def agl_replayer():
    return ReplayerSpec("acme", module="acme_all.replays", api=1)

@hookimpl
def agl_hook():
    return HookSpec("acme", module="acme_all.listener", api=1)
"""
JUDGES = """
class Judge:
    def score(self, answer): raise NotImplementedError

class Strict(Judge):
    def score(self, answer): return float(answer == "yes")
"""
REPLAYS = """
from contextlib import asynccontextmanager
from agl_core.plugins import hookimpl

@hookimpl
def replay_attempt(agent, rollout):
    return _replayed(agent, rollout.config.replay.rollout_id)

@asynccontextmanager
async def _replayed(agent, rollout_id):
    print("replays", rollout_id)
    yield agent
"""
LISTENER = """
import asyncio
from agl_core.plugins import hookimpl

@hookimpl
async def attempt_finished(status, reward):
    await asyncio.sleep(0.05)
    print("heard", status, reward, flush=True)
"""
RUN = """
import asyncio
from agl_core import LitAgent
from agl_store_memory import InMemoryLightningStore
from agl_core.plugins import build_component, flush_listeners
from agl_core.tracer import UnsentSpans
from agl_runner import LitAgentRunner
from agl_core.types import ReplayConfig, RolloutConfig

judge = build_component("judge", "strict")

class Agent(LitAgent):
    def rollout(self, task, resources, rollout):
        return judge.score(task)

async def main():
    runner = LitAgentRunner(UnsentSpans())
    with runner.run_context(agent=Agent(), store=InMemoryLightningStore()):
        await runner.step("yes", resources={})
        config = RolloutConfig(replay=ReplayConfig(rollout_id="ro-1"))
        await runner.step("no", resources={}, config=config)

asyncio.run(main())
flush_listeners()
"""
NAMES = ("hook.acme", "judge.strict", "kind.judge", "replayer.acme")


def test_it_takes_part_in_a_run_in_every_way(site):
    wheel = site.build(
        "acme-all",
        entry_points=dict.fromkeys(NAMES, "acme_all.hooks"),
        modules={
            "acme_all/__init__.py": "",
            "acme_all/hooks.py": HOOKS,
            "acme_all/judges.py": JUDGES,
            "acme_all/replays.py": REPLAYS,
            "acme_all/listener.py": LISTENER,
        },
    )
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    command += ["--disable-pip-version-check", "--target", str(site.path), str(wheel)]
    subprocess.run(command, check=True, timeout=100)

    done = site.python("-c", RUN, AGL_PLUGINS="acme-all")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "heard succeeded 0.0",
        "heard succeeded 1.0",
        "replays ro-1",
    ]
    rows = json.loads(site.agl("plugins", "list", "--json").stdout)
    mine = [f"{r['kind']}.{r['name']}" for r in rows if r["dist"] == "acme-all"]
    assert (mine, {r["status"] for r in rows if r["dist"] == "acme-all"}) == ([*NAMES], {"ok"})
    doctor = site.agl("plugins", "doctor", "--dist", "acme-all", "--json", "--strict")
    assert doctor.returncode == 0, doctor.stdout
