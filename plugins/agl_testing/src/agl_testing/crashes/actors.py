"""The processes of the crash test: a store server, and a training run with its runners.

Started as a script it imports everything once and then forks an actor per command, because a fresh
interpreter would take longer to start than a whole run. Commands and answers are lines of JSON::

    {"start": "store", "port": 4747, "factory": "pkg:Store", "options": {}}    {"pid": 17}
    {"code_of": 17}                                                            {"code": null}

A process writes the stacks of its threads to the log on SIGUSR1.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import signal
import sys
from typing import Any

import agl_core as agl
from agl_algorithm_kit import StoredRun, run_batch
from agl_core.algorithm import Run
from agl_core.emitter import emit_message
from agl_serving import PythonServerLauncher, PythonServerLauncherArgs
from agl_store_http import LightningStoreClient, StoreApp, StoreAppOptions, Transport
from agl_testing.crashes.stores import StoreSpec

ROUNDS = 3
"""A kill falls into the first, the last, or the one between."""
TASKS = list(range(6))


def serve(port: int, factory: str, options: dict[str, Any]) -> None:
    async def main() -> None:
        store = StoreSpec(factory, options).make()
        launcher = PythonServerLauncher(
            StoreApp(store, StoreAppOptions(watchdog_seconds=1.0)),
            PythonServerLauncherArgs(port=port),
        )
        await launcher.run_forever()

    asyncio.run(main())


@agl.prompt_rollout
async def agent(task: int, prompt_template: agl.PromptTemplate) -> float:
    emit_message(prompt_template.format(task=task))
    await asyncio.sleep(0.01)
    emit_message(f"done with {task}")
    return (task % 3) / 2


@agl.algo
async def climb(store: agl.LightningStore, run: Run, train_dataset: list[int]) -> None:
    """Measure one prompt per round; the next prompt depends on the result of the last."""
    state = run.state or {"round": 0, "scores": [], "prompt": "seed {task}"}
    while state["round"] < ROUNDS:
        prompt = agl.PromptTemplate(template=state["prompt"], engine="f-string")
        batch = await run_batch(
            store,
            train_dataset,
            resources={"prompt": prompt},
            mode="train",
            run=run,
            name=f"round-{state['round']}",
        )
        score = batch.score().mean
        state = {
            "round": state["round"] + 1,
            "scores": [*state["scores"], score],
            "prompt": f"{score:.3f} after {state['prompt']}",
        }
        await run.save(state, metrics={"score": score})
    best = agl.PromptTemplate(template=state["prompt"], engine="f-string")
    await run.put_resources("best", {"prompt": best})


def train(url: str, acknowledged: str) -> None:
    note_acknowledgements(acknowledged)
    StoredRun.look_seconds = 0.2  # an orphaned rollout must be found before this test times out
    trainer = agl.Trainer(
        algorithm=climb,
        store=LightningStoreClient(url),
        strategy={"type": "cs", "start_method": "fork", "reconnect_timeout": 5.0},
        n_runners=2,
        run="crash",
    )
    trainer.fit(agent, TASKS)


def note_acknowledgements(path: str) -> None:
    """Log every write that the server acknowledged, in this process and in the runners."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    call = Transport.call

    async def noting(self: Any, method: str, path: str, body: Any = None, **options: Any) -> Any:
        reply = await call(self, method, path, body, **options)
        if method != "GET" and "search" not in path:
            sent = json.loads(body) if body else None
            line = json.dumps({"path": path, "sent": sent, "reply": json.loads(reply.body)})
            os.write(file, line.encode() + b"\n")
        return reply

    Transport.call = noting


def main() -> None:
    # The output goes to the driver's actors.log.
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s"
    )
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    actors = {"store": serve, "train": train}
    codes: dict[int, int] = {}
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        if "code_of" in command:
            pid = command["code_of"]
            if pid not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            print(json.dumps({"code": codes.get(pid)}), flush=True)
            continue
        actor = actors[command.pop("start")]
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            code = 1
            try:
                actor(**command)
                code = 0
            except BaseException as error:
                print(f"{actor.__name__}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    main()
