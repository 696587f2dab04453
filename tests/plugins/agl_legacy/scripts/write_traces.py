"""Tracing to a store: by hand, with emitters and operations, in memory and through a server."""

import asyncio
import os
import sys

from agentlightning import InMemoryLightningStore, OtelTracer, Span
from agentlightning.emitter import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    find_final_reward,
    get_object_value,
    get_rewards_from_span,
    operation,
)
from agentlightning.semconv import AGL_ANNOTATION, LightningSpanAttributes, LinkAttributes
from agentlightning.store import LightningStore, LightningStoreClient, LightningStoreServer
from agentlightning.utils.otel import (
    extract_links_from_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
)


@operation
def search(query: str, *more: str, limit: int = 3) -> list[str]:
    return [query, *more][:limit]


async def write(store: LightningStore) -> None:
    tracer = OtelTracer()
    rollout = await store.start_rollout(input={"origin": "write_traces"})
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    with tracer.lifespan(store):
        async with tracer.trace_context("by-hand", **ids) as otel:
            with otel.start_as_current_span("first") as span:
                span.set_attribute("step", 1)
                with otel.start_as_current_span("child"):
                    emit_message("inside")
            search("a", "b", limit=2)
            with operation(name="rank") as ranking:
                ranking.set_input(size=2)
                ranking.set_output({"best": "b"})
            emit_object({"k": [1, 2]}, attributes=make_tag_attributes(["demo"]))
            emit_annotation({"note": "good"})
            try:
                raise LookupError("nothing")
            except LookupError as error:
                emit_exception(error)
            first = ranking.span()
            emit_reward(
                {"quality": 0.5, "speed": 1.0},
                primary_key="quality",
                attributes=make_link_attributes({"agentlightning.operation.name": "rank"}),
            )
            assert first.name == "agentlightning.operation"
    await store.update_attempt(**ids, status="succeeded")
    spans: list[Span] = list(await store.query_spans(rollout.rollout_id))
    by_name = {span.name: span for span in spans}
    assert by_name["child"].parent_id == by_name["first"].span_id
    assert get_object_value(by_name["agentlightning.object"]) == {"k": [1, 2]}
    rewarded = [s for s in spans if s.name == AGL_ANNOTATION and get_rewards_from_span(s)]
    links = extract_links_from_attributes(rewarded[0].attributes)
    assert LinkAttributes.KEY_MATCH.value == "key_match"
    assert LightningSpanAttributes.OPERATION_INPUT.value + ".query" in {
        key for span in spans for key in span.attributes
    }
    linked = query_linked_spans(spans, links)
    print(len(spans), [s.attributes["agentlightning.operation.name"] for s in linked])
    print(find_final_reward(spans), (await store.get_rollout_by_id(rollout.rollout_id)).status)


async def main(mode: str) -> None:
    if mode == "memory":
        await write(InMemoryLightningStore())
        return
    server = LightningStoreServer(InMemoryLightningStore(), "127.0.0.1", int(os.environ["PORT"]))
    await server.start()
    client = LightningStoreClient(server.endpoint)
    try:
        await write(client)
    finally:
        await client.close()
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
