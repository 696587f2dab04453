"""A class agent with its own training and validation, and a store server with worker processes."""

import asyncio
import os
from typing import Any

from agentlightning import LitAgent, NamedResources, Trainer
from agentlightning.algorithm.fast import Baseline
from agentlightning.execution import ClientServerExecutionStrategy
from agentlightning.store.memory import InMemoryLightningStore
from agentlightning.tracer.otel import OtelTracer
from agentlightning.types import LLM, Hook, Rollout


class Counter(LitAgent[dict[str, Any]]):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def training_rollout(
        self, task: dict[str, Any], resources: NamedResources, rollout: Rollout
    ) -> float:
        llm = resources["main_llm"]
        assert isinstance(llm, LLM)
        assert llm.sampling_parameters == {"temperature": 0.7}
        return self.factor * task["n"]

    def validation_rollout(
        self, task: dict[str, Any], resources: NamedResources, rollout: Rollout
    ) -> float:
        return -1.0


class Printer(Hook):
    async def on_rollout_end(self, *, agent, runner, rollout, spans) -> None:
        assert isinstance(agent, Counter)
        assert runner.get_worker_id().startswith("Worker-")
        assert os.getpid() != int(os.environ["MAIN_PROCESS"])


async def show(store: Any) -> None:
    from agentlightning.emitter import find_final_reward

    for rollout in await store.query_rollouts(sort_by="start_time"):
        spans = await store.query_spans(rollout.rollout_id, attempt_id="latest")
        print(rollout.mode, rollout.input["n"], rollout.status, find_final_reward(spans))


def main() -> None:
    os.environ["MAIN_PROCESS"] = str(os.getpid())
    port = int(os.environ["PORT"])
    trainer = Trainer(
        algorithm=Baseline(n_epochs=1, max_queue_length=2, polling_interval=0.05),
        tracer=OtelTracer(),
        store=InMemoryLightningStore(),
        strategy=ClientServerExecutionStrategy(server_host="127.0.0.1", server_port=port),
        hooks=[Printer()],
        initial_resources={
            "main_llm": LLM(
                endpoint="http://127.0.0.1:9/v1",
                model="simulated",
                sampling_parameters={"temperature": 0.7},
            )
        },
    )
    trainer.fit(Counter(0.5), [{"n": 1}, {"n": 2}], val_dataset=[{"n": 3}])
    asyncio.run(show(trainer.store))


if __name__ == "__main__":
    main()
