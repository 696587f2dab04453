"""The tracer alone: what a function does becomes a tree of spans, without a store or a runner."""

from __future__ import annotations

import asyncio

import agl_core as agl
from agl_tracer_otel import OtelTracer


@agl.operation(name="search")
def search(query: str) -> list[str]:
    return [f"a page about {query}"]


@agl.operation(name="answer")
def answer(question: str) -> str:
    pages = search(question)
    agl.emit_message(f"read {len(pages)} page")
    return pages[0].upper()


async def main() -> None:
    tracer = OtelTracer()
    with tracer.lifespan():  # given a store, spans go there; without one they stay in memory
        async with tracer.trace_context("demo"):
            answer("bees")
            agl.emit_reward(0.5)
        spans = tracer.get_last_trace()

    depth: dict[str | None, int] = {None: -1}
    print("span                                      milliseconds  reward")
    for span in sorted(spans, key=lambda one: one.start_time or 0.0):
        depth[span.span_id] = depth.get(span.parent_id, -1) + 1
        operation = span.attributes.get("agentlightning.operation.name", "")
        name = f"{'  ' * depth[span.span_id]}{span.name} {operation}"
        lasted = ((span.end_time or 0.0) - (span.start_time or 0.0)) * 1000
        reward = agl.get_reward_value(span)
        print(f"{name:41} {lasted:12.2f}  {'' if reward is None else reward}")


if __name__ == "__main__":
    asyncio.run(main())
