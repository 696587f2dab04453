"""Tests of the findings about a store; real store calls create each case."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from agl_core import semconv
from agl_core.doctor import Finding
from agl_core.types import AttemptedRollout, RolloutConfig, Span, TraceStatus
from agl_store_memory import InMemoryLightningStore
from agl_testing import Clock
from agl_testing.samples import full_span, reward_span, span_of
from agl_testing.traces import call_span, trace
from agl_trace.check import check_store


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


async def finding_of(store, check: str, *, later: float = 0.0, **options) -> Finding:
    found = await check_store(store, now=time.time() + later, **options)
    (finding,) = [finding for finding in found if finding.check == check]
    return finding


async def bad(store, *, later: float = 0.0) -> list[str]:
    found = await check_store(store, now=time.time() + later)
    return [finding.check for finding in found if finding.severity in ("warning", "error")]


async def test_times_are_judged_by_the_clock_of_the_store(store, monkeypatch):
    await store.enqueue_rollout("task")
    await store.dequeue_rollout("Worker-0")
    told = await store.now()

    async def now():
        return told

    with Clock(told + 7200).installed():
        ours = [each.check for each in await check_store(store)]
        monkeypatch.setattr(store, "now", now)
        its = [each.check for each in await check_store(store)]
    assert ("stuck" in ours, "stuck" in its) == (True, False)


async def run(
    store, spans: Sequence[Span] = (), *, status: str = "succeeded", error: str = "", **config
) -> AttemptedRollout:
    """Run a rollout whose attempt has these spans and this final status."""
    rollout = await store.start_rollout("x", config=RolloutConfig(**config), worker_id="w")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    await store.add_many_spans([span.model_copy(update=ids) for span in spans])
    metadata = {"error": error} if error else {}
    await store.update_attempt(*ids.values(), status=status, metadata=metadata)
    return rollout


class TestWork:
    async def test_an_empty_store_has_no_problems(self, store):
        assert await bad(store) == []

    async def test_a_queue_that_never_had_a_runner(self, store):
        rollout = await store.enqueue_rollout("x")
        finding = await finding_of(store, "queue")
        assert finding.severity == "error"
        assert finding.ids == (rollout.rollout_id,)
        assert "no runner has ever polled" in finding.what
        assert "agl runner" in finding.todo

    async def test_a_queue_whose_runners_are_gone(self, store):
        await store.dequeue_rollout("w")
        await store.enqueue_rollout("x")
        assert (await finding_of(store, "queue")).severity == "info"
        finding = await finding_of(store, "queue", later=300)
        assert finding.severity == "error"
        assert "no runner is alive: the last sign of one is 5 min old" in finding.what

    async def test_a_queue_with_busy_runners_is_not_a_problem(self, store):
        for _ in range(2):
            await store.enqueue_rollout("x")
        await store.dequeue_rollout("w")
        finding = await finding_of(store, "queue")
        assert "1 of 1 live runners are busy" in finding.what
        assert await bad(store) == []

    async def test_a_rollout_whose_runner_is_gone(self, store):
        rollout = await store.start_rollout("x", worker_id="w")
        assert await bad(store) == []
        finding = await finding_of(store, "stuck", later=300)
        assert finding.ids == (rollout.rollout_id,)
        assert "held by runners that are gone" in finding.what
        assert "unresponsive_seconds" in finding.todo

    async def test_a_rollout_that_the_watchdog_will_end(self, store):
        config = RolloutConfig(unresponsive_seconds=3600)
        await store.start_rollout("x", config=config, worker_id="w")
        finding = await finding_of(store, "stuck", later=300)
        assert "the watchdog will end them" in finding.todo

    async def test_a_rollout_whose_runner_is_alive_and_works_on_it(self, store, monkeypatch):
        start = time.time()
        await store.start_rollout("x", worker_id="w")
        monkeypatch.setattr(time, "time", lambda: start + 300)
        await store.update_worker("w", {"cpu": 1})
        assert await bad(store) == []

    async def test_a_rollout_whose_runner_has_another_attempt(self, store, monkeypatch):
        start = time.time()
        first = await store.start_rollout("x", worker_id="w")
        monkeypatch.setattr(time, "time", lambda: start + 300)
        await store.start_rollout("y", worker_id="w")
        finding = await finding_of(store, "stuck")
        assert finding.ids == (first.rollout_id,)
        assert "another attempt" in finding.what

    async def test_a_rollout_that_was_started_without_a_worker(self, store):
        await store.start_rollout("x")
        finding = await finding_of(store, "stuck", later=300)
        assert "started without a worker" in finding.what

    async def test_failures_are_grouped_by_reason(self, store):
        for _ in range(2):
            await run(store, status="failed", error="ValueError: no such room")
        await run(store, status="failed", error="KeyError: 'x'")
        found = [f.what for f in await check_store(store) if f.check == "failed"]
        assert [what.split(" (")[0] for what in found] == ["2 rollouts failed", "1 rollouts failed"]
        assert found[0].endswith("ValueError: no such room")

    async def test_retries_that_are_used_up(self, store):
        rollout = await run(store, status="failed", max_attempts=2, retry_condition=["failed"])
        assert "retries" not in await bad(store)
        await store.dequeue_rollout("w")
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        finding = await finding_of(store, "retries")
        assert finding.ids == (rollout.rollout_id,)

    async def test_resources_that_are_not_there(self, store):
        await store.enqueue_rollout("x", resources_id="gone")
        finding = await finding_of(store, "resources")
        assert "resources that the store does not have" in finding.what


class TestTraces:
    async def test_a_good_trace(self, store):
        await run(store, trace(3))
        assert await bad(store) == []
        assert "3 of 3 model calls" in (await finding_of(store, "token-ids")).what

    @pytest.mark.parametrize(
        ("status", "severity", "words"),
        [
            ("succeeded", "error", "succeeded without a single span"),
            ("failed", "warning", "failed before the agent did anything"),
            ("running", "info", "no spans yet"),
        ],
    )
    async def test_why_a_trace_is_empty(self, store, status, severity, words):
        rollout = await run(store, status=status)
        finding = await finding_of(store, "empty-trace")
        assert finding.severity == severity
        assert words in finding.what
        assert rollout.rollout_id in finding.what

    async def test_a_trace_that_is_in_an_earlier_attempt(self, store):
        rollout = await run(store, trace(1), status="failed")
        await store.start_attempt(rollout.rollout_id, "w")
        assert "but in earlier ones" in (await finding_of(store, "empty-trace")).what

    async def test_calls_without_token_ids(self, store):
        spans = trace(2)
        for span in spans:
            span.attributes.pop("response_token_ids", None)
        await run(store, spans)
        finding = await finding_of(store, "token-ids")
        assert finding.severity == "warning"
        assert "2 of 2 model calls have no token ids" in finding.what

    @pytest.mark.parametrize(
        ("attributes", "severity", "words"),
        [
            ({"gen_ai.usage.output_tokens": 30}, "warning", "fewer token ids than tokens sampled"),
            (
                {
                    "gen_ai.completion.1.role": "assistant",
                    "gen_ai.completion.1.content": "another",
                    "response_token_ids.1": [1],
                },
                "warning",
                "several choices",
            ),
            ({semconv.REPLAYED_CALL: 1}, "info", "repeats a recorded call"),
        ],
    )
    async def test_a_call_that_is_left_out(self, store, attributes, severity, words):
        call = call_span(1, 0, None, 0.0)
        call.attributes |= attributes
        rollout = await run(store, [call])
        finding = await finding_of(store, "left-out")
        assert (finding.severity, finding.ids) == (severity, (rollout.rollout_id,))
        assert f"1 model calls are left out: {words}" in finding.what
        assert "no-calls" not in [finding.check for finding in await check_store(store)]

    async def test_an_answer_that_broke_off_is_left_out(self, store):
        broken = call_span(1, 0, None, 0.0)
        broken.status = TraceStatus(status_code="ERROR", description="connection lost")
        await run(store, [broken, call_span(2, 1, None, 1.0)])
        finding = await finding_of(store, "left-out")
        assert finding.severity == "warning"
        assert "1 model calls are left out: its answer broke off" in finding.what

    async def test_an_auxiliary_call_is_left_out_on_purpose(self, store):
        counted = call_span(2, 0, None, 1.0)
        counted.attributes |= {"gen_ai.response.id": "other", "gen_ai.request.max_tokens": 1}
        await run(store, [call_span(1, 0, None, 0.0), counted])
        finding = await finding_of(store, "left-out")
        assert finding.severity == "info"
        assert "auxiliary" in finding.what

    async def test_two_spans_of_one_call_are_not_left_out(self, store):
        await run(store, [call_span(1, 0, None, 0.0), call_span(2, 0, None, 0.0)])
        assert "left-out" not in [finding.check for finding in await check_store(store)]

    async def test_what_rows_are_certified_to_be(self, store):
        history = [1, 2, 3]
        logprobs = {"logprobs.content": '[{"logprob": -1}, {"logprob": -2}]'}
        calls: list[Span] = []
        for turn, version in enumerate(("step-1", "step-2", "step-2"), start=1):
            if turn == 3:
                history = [1, 9]  # the agent truncates its history
            calls.append(
                Span.from_attributes(
                    attributes={
                        "gen_ai.request.model": "m",
                        "prompt_token_ids": list(history),
                        "response_token_ids": [10 + turn, 20 + turn],
                        "agentlightning.model_version": version,
                        **(logprobs if turn < 3 else {}),
                    },
                    sequence_id=turn,
                    name="openai.chat.completion",
                    start_time=float(turn),
                    end_time=turn + 0.5,
                )
            )
            history += [10 + turn, 20 + turn, 5]
        rollout = await run(store, calls)
        finding = await finding_of(store, "rows")
        assert finding.severity == "ok"
        assert finding.what == (
            "to train on: 2 rows of 12 tokens, 6 to train on; token ids in all, "
            "logprobs in 1 of 2; model versions: step-1 in 1, step-2 in 2, several in 1; "
            "breaks: 1 (history edited)"
        )
        mixed = await finding_of(store, "versions")
        assert mixed.severity == "warning"
        assert mixed.ids == (rollout.rollout_id,)
        assert "1 of 2 rows lack" in (await finding_of(store, "logprobs")).what

    async def test_spans_without_a_call(self, store):
        rollout = await store.start_rollout("x", worker_id="w")
        await store.add_span(span_of(rollout))
        assert "no model call" in (await finding_of(store, "no-calls")).what

    async def test_a_reward_that_matched_no_call(self, store):
        agent, _call, reward = trace(1)
        rollout = await run(store, [agent, reward])
        finding = await finding_of(store, "reward")
        assert finding.ids == (rollout.rollout_id,)
        assert "1 rewards match no model call" in finding.what

    async def test_success_without_a_reward(self, store):
        rollout = await run(store, [span_of(await store.start_rollout("y", worker_id="v"))])
        finding = await finding_of(store, "no-reward")
        assert finding.ids == (rollout.rollout_id,)

    async def test_spans_that_were_evicted(self):
        store = InMemoryLightningStore(eviction_memory_threshold=8000, safe_memory_threshold=1)
        rollout = await store.start_rollout("x", worker_id="w")
        for number in range(1, 20):
            await store.add_span(
                full_span(rollout, number).model_copy(update={"span_id": f"{number:016x}"})
            )
        assert "dropped from memory" in (await finding_of(store, "evicted")).what

    async def test_only_the_newest_are_read(self, store):
        await run(store, status="succeeded")
        newest = await store.start_rollout("x", worker_id="w")
        await store.add_span(reward_span(newest, 1.0))
        found = await check_store(store, max_traces=1)
        assert "empty-trace" not in [finding.check for finding in found]
        assert "newest 1 traces of 2" in (await finding_of(store, "sample", max_traces=1)).what
