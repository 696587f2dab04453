"""Rows made from spans equal the server's raw replies, token for token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import openai
import pytest
from hypothesis import given, strategies as st

from agl_adapter_trajectory import TraceToTrajectory
from agl_adapters import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from agl_algo_verl.rows import Row, RowBuilder, fit_rows
from agl_core.errors import ConfigError
from agl_core.types import LLM, Span
from agl_scripted import Reply, ScriptedModels, ToolCall

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ADAPTERS = {
    "triplet": TracerTraceToTriplet,
    "proxy-triplet": LlmProxyTraceToTriplet,
    "trajectory": TraceToTrajectory,
}


class Agent:
    """An attempt of a rollout, and its model calls."""

    def __init__(self, served: Any) -> None:
        self.served = served
        self.messages: list[Any] = []

    async def __aenter__(self) -> Agent:
        self.rollout = await self.served.store.start_rollout(input="anything")
        llm: LLM = self.served.proxy.as_resource(
            self.rollout.rollout_id, self.rollout.attempt.attempt_id, model="tiny"
        )
        self.client = openai.AsyncOpenAI(base_url=llm.endpoint, api_key="none", max_retries=0)
        self.model = llm.model
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.client.close()

    async def say(self, text: str, *, limit: int = 12, role: str = "user", **more: Any) -> str:
        self.messages.append({"role": role, "content": text, **more.pop("message", {})})
        reply = await self.client.chat.completions.create(
            model=self.model, messages=self.messages, max_tokens=limit, **more
        )
        message = reply.choices[0].message
        self.messages.append(message.model_dump(exclude_none=True))
        return message.content or ""

    async def stream(self, text: str, *, limit: int = 12, stop_after: int | None = None) -> str:
        self.messages.append({"role": "user", "content": text})
        said = ""
        chunks: Any = await self.client.chat.completions.create(
            model=self.model, messages=self.messages, max_tokens=limit, stream=True
        )
        async with chunks:
            async for number, chunk in _enumerate(chunks):
                said += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                if number == stop_after:
                    break
        self.messages.append({"role": "assistant", "content": said})
        return said

    async def spans(self) -> Sequence[Span]:
        await self.served.proxy.flush(self.rollout.rollout_id, self.rollout.attempt.attempt_id)
        return (await self.served.store.query_spans(self.rollout.rollout_id)).items


async def _enumerate(items: Any) -> AsyncIterator[tuple[int, Any]]:
    number = 0
    async for item in items:
        yield number, item
        number += 1


def transitions(raw: Sequence[Any]) -> list[tuple[list[int], list[int], list[float]]]:
    return [(a.prompt_ids, a.response_ids, a.logprobs) for a in raw if a.response_ids]


def trajectories(raw: Sequence[Any]) -> list[tuple[list[int], list[int], list[float]]]:
    """Return the expected rows from raw replies: tokens, mask and log-probabilities."""
    rows: list[tuple[list[int], list[int], list[float]]] = []
    for answer in raw:
        if not answer.response_ids:
            continue
        matching = [row for row in rows if answer.prompt_ids[: len(row[0])] == row[0]]
        if matching:
            tokens, mask, logprobs = max(matching, key=lambda row: len(row[0]))
        else:
            tokens, mask, logprobs = [], [], []
            rows.append((tokens, mask, logprobs))
        inserted = answer.prompt_ids[len(tokens) :]
        tokens += inserted + answer.response_ids
        mask += [0] * len(inserted) + [1] * len(answer.response_ids)
        logprobs += [0.0] * len(inserted) + answer.logprobs
    return rows


def assert_rows_are(raw: Sequence[Any], spans: Sequence[Span], *, versions: Any = (3, 3)) -> None:
    """Compare the rows of every adapter with the raw replies, in both aggregations."""
    for name, adapter in ADAPTERS.items():
        rows, _ = RowBuilder("transition", adapter()).build(spans)
        found = [(row.prompt_ids, row.response_ids, row.logprobs) for row in rows]
        assert found == transitions(raw), name
        assert all(row.mask == [1] * len(row.response_ids) for row in rows)
        assert {row.versions for row in rows} <= {versions}

        rows, _ = RowBuilder("trajectory", adapter()).build(spans)
        whole = [
            (
                row.prompt_ids + row.response_ids,
                [0] * len(row.prompt_ids) + row.mask,
                [0.0] * len(row.prompt_ids) + (row.logprobs or []),
            )
            for row in rows
        ]
        assert whole == trajectories(raw), name
        assert {row.versions for row in rows} <= {versions}


class TestAgainstTheServer:
    async def test_one_call(self, served: Any):
        async with Agent(served) as agent:
            await agent.say("what is 1+1?")
            assert len(served.raw) == 1
            assert served.raw[0].response_ids
            assert_rows_are(served.raw, await agent.spans())

    async def test_several_turns_are_one_trajectory(self, served: Any):
        async with Agent(served) as agent:
            for text in ("one", "two", "three"):
                await agent.say(text, limit=30)
            spans = await agent.spans()
            assert_rows_are(served.raw, spans)
            rows, _ = RowBuilder("transition", TraceToTrajectory()).build(spans)
            assert len(rows) == 3
            rows, _ = RowBuilder("trajectory", TraceToTrajectory()).build(spans)
            assert sum(row.turns for row in rows) == 3

    async def test_calls_are_the_same_in_every_aggregation(self, served: Any):
        async with Agent(served) as agent:
            for text in ("one", "two", "three"):
                await agent.say(text)
            spans = await agent.spans()
        found: list[Any] = []
        for adapter in (TraceToTrajectory, TracerTraceToTriplet):
            for aggregation in ("transition", "trajectory"):
                rows, _ = RowBuilder(aggregation, adapter(), by_turn=True).build(spans)
                calls = [(row, call) for row in rows for call in row.calls]
                for row, call in calls:
                    assert tuple(row.response_ids[call.start : call.end]) == call.turn.action
                    assert row.logprobs is not None
                    surprisal = -sum(row.logprobs[call.start : call.end])
                    assert call.turn.surprisal == pytest.approx(surprisal)
                found.append([(call.turn, call.span_id, call.order) for _, call in calls])
        assert [list(turn.action) for turn, _, _ in found[0]] == [
            answer.response_ids for answer in served.raw
        ]
        assert len({turn.state for turn, _, _ in found[0]}) == 3
        assert found[1:] == found[:1] * 3

    async def test_streamed(self, served: Any):
        async with Agent(served) as agent:
            await agent.stream("one")
            await agent.stream("two", limit=40)
            await agent.say("three")
            assert_rows_are(served.raw, await agent.spans())

    async def test_truncated_by_its_limit(
        self, served: Any, generator: Any, monkeypatch: pytest.MonkeyPatch
    ):
        # What is sampled depends on the tests before, and on when clients left there: the end
        # token may be among the first three.
        monkeypatch.setattr(generator, "stop_ids", frozenset())
        async with Agent(served) as agent:
            await agent.say("go", limit=3)
            await agent.say("on", limit=3)
            assert {a.finish_reason for a in served.raw} == {"length"}
            assert_rows_are(served.raw, await agent.spans())

    async def test_history_that_was_cut_begins_a_new_row(self, served: Any):
        async with Agent(served) as agent:
            await agent.say("one")
            await agent.say("two")
            del agent.messages[:2]
            await agent.say("three")
            spans = await agent.spans()
            assert_rows_are(served.raw, spans)
            rows, _ = RowBuilder("trajectory", TraceToTrajectory()).build(spans)
            assert len(rows) >= 2

    async def test_an_agent_that_fails_leaves_the_rows_of_its_calls(self, served: Any):
        async with Agent(served) as agent:
            await agent.say("one")
            with pytest.raises(openai.BadRequestError, match="maximum context length"):
                await agent.say("x" * 600)
            spans = await agent.spans()
            assert len(served.raw) == 2
            assert_rows_are(served.raw, spans)
            rows, report = RowBuilder("transition", TraceToTrajectory()).build(spans)
            assert len(rows) == 1
            assert report.count("call", "its answer broke off") == 1

    async def test_a_stream_that_its_reader_left(self, served: Any):
        """The span holds the tokens that passed the proxy; the server had sampled more."""
        async with Agent(served) as agent:
            await agent.stream("tell me", limit=400, stop_after=3)
            spans: Sequence[Span] = ()
            with anyio.fail_after(30):  # there is no event for the end of an abandoned call
                while not (spans and served.raw[0].prompt_ids):
                    await anyio.sleep(0.02)
                    spans = await agent.spans()
            rows, _ = RowBuilder("transition", TraceToTrajectory()).build(spans)
            assert [row.prompt_ids for row in rows] == [served.raw[0].prompt_ids]
            length = len(rows[0].response_ids)
            assert 0 < length < 400
            assert rows[0].response_ids == served.raw[0].response_ids[:length]
            assert rows[0].logprobs == served.raw[0].logprobs[:length]

    async def test_a_tool_call(self, served: Any):
        answers = [Reply(tool_calls=[ToolCall("add", {"a": 1, "b": 1})]), Reply("It is 2.")]
        with ScriptedModels(answers) as models:
            served.proxy.update_model_list(
                [
                    {
                        "model_name": "tiny",
                        "litellm_params": {
                            "model": "hosted_vllm/tiny",
                            "api_base": models.base_url,
                        },
                    }
                ]
            )
            tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
            async with Agent(served) as agent:
                await agent.say("1+1?", tools=tools)
                called = agent.messages[-1]["tool_calls"][0]
                assert called["function"]["name"] == "add"
                tool = {"tool_call_id": called["id"]}
                assert await agent.say("2", role="tool", message=tool, tools=tools) == "It is 2."
                spans = await agent.spans()
            from agl_scripted import prompt_tokens

            rows, _ = RowBuilder("transition", TraceToTrajectory()).build(spans)
            assert [(row.prompt_ids, row.response_ids, row.logprobs) for row in rows] == [
                (
                    [token.id for token in prompt_tokens(request.body)],
                    [token.id for token in answer.tokens],
                    [token.logprob for token in answer.tokens],
                )
                for request, answer in zip(models.requests, answers, strict=True)
            ]

    @pytest.mark.parametrize("adapter", ADAPTERS.values())
    @pytest.mark.parametrize("aggregation", ["transition", "trajectory"])
    async def test_calls_to_a_model_that_is_not_in_training_make_no_rows(
        self, served: Any, aggregation: Any, adapter: Any
    ):
        (entry,) = served.proxy.get_model_list()
        served.proxy.update_model_list([entry, {**entry, "model_name": "judge"}])
        async with Agent(served) as agent:
            await agent.say("one")
            agent.model, agent.messages = "judge", []
            await agent.say("two")
            spans = await agent.spans()
        builder = RowBuilder(aggregation, adapter())
        assert len(builder.build(spans)[0]) == 2
        builder.models = ["tiny", "tiny-val"]
        rows, report = builder.build(spans)
        assert [row.response_ids for row in rows] == [served.raw[0].response_ids]
        assert not report.left_out
        builder.models = ["tiny-val"]
        assert builder.build(spans)[0] == []

    @pytest.mark.parametrize("adapter", ADAPTERS.values())
    @pytest.mark.parametrize("aggregation", ["transition", "trajectory"])
    async def test_a_row_that_was_sampled_with_a_penalty_has_no_log_probabilities(
        self, served: Any, aggregation: Any, adapter: Any
    ):
        async with Agent(served) as agent:
            await agent.say("one", presence_penalty=0.5)
            spans = await agent.spans()
        (row,), _ = RowBuilder(aggregation, adapter()).build(spans)
        assert row.response_ids == served.raw[0].response_ids
        assert row.logprobs is None, "they are those of the model without the penalty"

    @pytest.mark.parametrize("adapter", ADAPTERS.values())
    @pytest.mark.parametrize("aggregation", ["transition", "trajectory"])
    async def test_a_row_says_what_was_not_sampled_as_in_training(
        self, served: Any, aggregation: Any, adapter: Any
    ):
        async with Agent(served) as agent:
            await agent.say("one", temperature=0.7)
            agent.messages = []
            await agent.say("two", temperature=1, extra_body={"top_k": -1})
            spans = await agent.spans()
        builder = RowBuilder(aggregation, adapter())
        rows, _ = builder.build(spans, {"temperature": 1.0})
        assert [row.otherwise for row in rows] == [("temperature=0.7",), ()]
        rows, _ = builder.build(spans)
        assert [row.otherwise for row in rows] == [(), ()]

    async def test_a_version_that_is_not_a_step_is_ignored(self, served: Any):
        served.proxy.set_model_version("of yesterday")
        async with Agent(served) as agent:
            await agent.say("one")
            assert_rows_are(served.raw, await agent.spans(), versions=None)

    async def test_a_row_over_new_weights_says_both(self, served: Any):
        async with Agent(served) as agent:
            await agent.say("one", limit=100)
            served.proxy.set_model_version("4")
            await agent.say("two", limit=100)
            rows, _ = RowBuilder("trajectory", TraceToTrajectory()).build(await agent.spans())
            found = [row.versions for row in rows]
            assert found in ([(3, 4)], [(3, 3), (4, 4)])
            rows, _ = RowBuilder("transition", TraceToTrajectory()).build(await agent.spans())
            assert [row.versions for row in rows] == [(3, 3), (4, 4)]


class TestBuilder:
    def test_no_spans_are_no_rows(self):
        assert RowBuilder("transition", TraceToTrajectory()).build([])[0] == []

    def test_an_adapter_of_messages_is_refused(self):
        with pytest.raises(ConfigError, match=r"^adapter: .*'triplet' or 'trajectory'"):
            RowBuilder("trajectory", TraceToMessages())

    def test_a_triplet_adapters_choice_of_calls_holds_for_trajectories(self):
        builder = RowBuilder("trajectory", TracerTraceToTriplet(agent_match="solver"))
        assert isinstance(builder.adapter, TraceToTrajectory)
        assert builder.adapter.rules.agent_match == "solver"


def row(prompt: int, response: int) -> Row:
    return Row([1] * prompt, list(range(response)), [1] * response, [0.5] * response, None)


class TestLimits:
    def test_rows_within_the_limits_are_kept_as_they_are(self):
        rows = [row(4, 8), row(1, 1)]
        assert fit_rows(rows, 4, 8).rows == rows
        assert fit_rows(rows, 4, 8).over == 0

    def test_a_long_prompt_cannot_be_cut(self):
        fit = fit_rows([row(5, 1)], 4, 8, cut=True)
        assert (fit.rows, fit.prompt_too_long, fit.response_too_long) == ([], 1, 0)

    def test_a_long_response_is_left_out_or_cut(self):
        assert fit_rows([row(4, 9)], 4, 8).rows == []
        fit = fit_rows([row(4, 9)], 4, 8, cut=True)
        assert fit.rows[0].response_ids == list(range(8))
        assert fit.rows[0].logprobs == [0.5] * 8
        assert (fit.prompt_too_long, fit.response_too_long) == (0, 1)

    def test_a_row_without_a_sampled_token_is_left_out(self):
        late = Row([1], [5, 6, 7], [0, 0, 1], None, None)
        assert fit_rows([late], 4, 2, cut=True).rows == []

    @given(
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9))),
        st.integers(1, 9),
        st.integers(1, 9),
        st.booleans(),
    )
    def test_every_row_is_kept_or_counted(self, sizes, max_prompt, max_response, cut):
        rows = [row(*size) for size in sizes]
        fit = fit_rows(rows, max_prompt, max_response, cut=cut)
        assert all(len(kept.prompt_ids) <= max_prompt for kept in fit.rows)
        assert all(len(kept.response_ids) <= max_response for kept in fit.rows)
        out = fit.prompt_too_long + (0 if cut else fit.response_too_long)
        assert len(fit.rows) + out == len(rows)
