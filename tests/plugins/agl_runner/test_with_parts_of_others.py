"""The core and the runner alone: store, tracer, strategy and algorithm of somebody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

SCRIPT = """
import asyncio, sys
from pathlib import Path

ALONE = {"agl_core", "agl_runner"}
for source in Path(sys.argv[2]).glob("plugins/*/src/agl_*"):
    if source.name not in ALONE:
        sys.modules[source.name] = None  # its import fails, as if it were not installed

sys.path.insert(0, sys.argv[1])
from minimal_store import MinimalStore

from agl_core.agent import rollout
from agl_core.algorithm import algo
from agl_core.emitter import emit_message, find_final_reward
from agl_core.execution import ExecutionStrategy, ThreadingEvent
from agl_core.plugins import Registry, reset_registry
from agl_core.tracer import UnsentSpans
from agl_core.trainer import Trainer
from agl_core.types import EnqueueRolloutRequest

reset_registry(Registry(
    one for one in Registry.discover().records if one.dist.replace("-", "_") in ALONE
))


class OneLoop(ExecutionStrategy):
    def execute(self, algorithm, runner, store):
        async def run():
            event = ThreadingEvent()
            worker = asyncio.create_task(runner(store, 0, event))
            await algorithm(store, event)
            event.set()
            await worker

        asyncio.run(run())


class AcmeTracer(UnsentSpans):
    pass


@rollout
async def double(task: int) -> float:
    emit_message("doubled")
    return 2.0 * task


@algo
async def sum_up(*, store, run, train_dataset):
    made = await run.enqueue([EnqueueRolloutRequest(input=task) for task in train_dataset])
    done = await run.wait_for_rollouts([one.rollout_id for one in made], timeout=60)
    await run.save({"done": len(done)})
    rewards = []
    for one in made:
        rewards.append(find_final_reward(await store.query_spans(one.rollout_id)))
    print(rewards, run.state)


Trainer(
    store=MinimalStore(), tracer=AcmeTracer(), strategy=OneLoop(), algorithm=sum_up
).fit(double, [1, 2, 3])
print(sorted(name for name, module in sys.modules.items()
             if module is not None and name.startswith("agl_") and "." not in name))
"""


def test_a_run_needs_no_other_package_of_ours():
    command = [sys.executable, "-P", "-c", SCRIPT, str(ROOT / "tests/core/store"), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rewards, packages = done.stdout.splitlines()
    assert rewards == "[2.0, 4.0, 6.0] {'done': 3}"
    assert packages == "['agl_core', 'agl_runner']"
