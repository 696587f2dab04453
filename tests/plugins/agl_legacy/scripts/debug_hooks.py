"""Debugging: a runner without a trainer, one step, hooks that read the trace, a failing agent."""

import asyncio
from typing import Any

import agentlightning as agl


@agl.rollout
async def agent(task: str, prompt_template: agl.PromptTemplate) -> float:
    agl.emit_message(prompt_template.format(any_question=task))
    if task == "fail":
        raise ValueError("no answer")
    return 0.75


class Inspect(agl.Hook):
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: agl.Rollout) -> None:
        self.seen.append("rollout_start")

    async def on_trace_start(
        self, *, agent: Any, runner: Any, tracer: agl.Tracer, rollout: agl.Rollout
    ) -> None:
        self.seen.append("trace_start")

    async def on_trace_end(
        self, *, agent: Any, runner: Any, tracer: agl.Tracer, rollout: agl.Rollout
    ) -> None:
        names = [span.name for span in tracer.get_last_trace()]
        self.seen.append(f"trace_end {agl.semconv.AGL_MESSAGE in names}")

    async def on_rollout_end(
        self, *, agent: Any, runner: Any, rollout: agl.Rollout, spans: Any
    ) -> None:
        self.seen.append("rollout_end")


async def main() -> None:
    hook = Inspect()
    store = agl.InMemoryLightningStore()
    runner = agl.LitAgentRunner[str](agl.OtelTracer())
    prompt = agl.PromptTemplate(template="You ask: {any_question}", engine="f-string")
    with runner.run_context(agent=agent, store=store, hooks=[hook]):
        rollout = await runner.step("Why?", resources={"main_prompt": prompt}, mode="train")
        print(rollout.status, hook.seen)
        try:
            await runner.step("fail", resources={"main_prompt": prompt})
        except ValueError as error:
            print("raised:", error)
    attempts = await store.query_attempts(rollout.rollout_id)
    spans = await store.query_spans(rollout.rollout_id, name=agl.semconv.AGL_MESSAGE)
    print([attempt.status for attempt in attempts], agl.get_message_value(spans[0]))
    failed = await store.query_rollouts(status_in=["failed"])
    print([each.input for each in failed])


if __name__ == "__main__":
    asyncio.run(main())
