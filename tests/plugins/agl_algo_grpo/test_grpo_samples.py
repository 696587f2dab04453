"""The selection of rollouts to train on, with spans recorded by a real proxy."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from openai import APIError, AsyncOpenAI

from agl_adapter_trajectory import TraceToTrajectory, TrajectoryRow
from agl_algo_grpo.config import CreditConfig, GRPOConfig
from agl_algo_grpo.grpo import group_advantages
from agl_algo_grpo.samples import FAILURE, Decision, Learner, Reason, Sample, Step, decide
from agl_core import semconv
from agl_core.algorithm import RewardRange, RolloutOutcome
from agl_core.types import RolloutStatus, Span
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore

Agent = Callable[[AsyncOpenAI], Awaitable[None]]


async def ask(client: AsyncOpenAI, text: str = "Hello", **options: Any) -> None:
    """Call the model and ignore its errors, as the worst agents do."""
    with contextlib.suppress(APIError):
        answer: Any = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}], **options
        )
        if options.get("stream"):
            async for _ in answer:
                pass


async def outcome_of(
    script: Sequence[Reply],
    agent: Agent,
    *,
    reward: float | None = 0.5,
    status: RolloutStatus = "succeeded",
    version: str = "step-3",
    entry: Mapping[str, Any] = MappingProxyType({}),
) -> RolloutOutcome:
    store = InMemoryLightningStore()
    with ScriptedModels(list(script), models=["m"]) as models:
        parameters = {"model": "hosted_vllm/m", "api_base": models.base_url, **entry}
        proxy = DirectProxy(
            store=store,
            model_list=[{"model_name": "m", "litellm_params": parameters}],
            num_retries=0,
        )
        await proxy.start()
        proxy.set_model_version(version)
        started = await store.start_rollout(input="-")
        llm = proxy.as_resource(started.rollout_id, started.attempt.attempt_id)
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="-", max_retries=0) as client:
            await agent(client)
        await proxy.stop()
    spans = (await store.query_spans(started.rollout_id)).items
    rollout = await store.update_rollout(started.rollout_id, status=status)
    return RolloutOutcome(rollout, reward, spans)


def decision_on(outcome: RolloutOutcome, **options: Any) -> Decision:
    learners = {"llm": Learner(GRPOConfig(model="m", **options), "m")}
    return decide(outcome, TraceToTrajectory(), learners, {"step-3"})["llm"]


async def once(client: AsyncOpenAI) -> None:
    await ask(client)


async def twice(client: AsyncOpenAI) -> None:
    await ask(client)
    await ask(client)


async def twice_streamed(client: AsyncOpenAI) -> None:
    await ask(client, stream=True)
    await ask(client, stream=True)


GOOD = Reply("one two three")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def test_a_good_rollout_is_a_sample():
    decision = decision_on(await outcome_of([GOOD], once))
    assert decision.reason == ""
    assert decision.sample is not None
    assert decision.sample.reward == 0.5
    (row,) = decision.sample.rows
    assert sum(row.mask) == 3


@pytest.mark.parametrize(
    ("script", "agent", "reason"),
    [
        ([Reply(error_status=500)], once, Reason.BROKEN_CALL),
        ([Reply(drop_after=0)], once, Reason.BROKEN_CALL),
        ([GOOD, Reply(error_status=503)], twice, Reason.BROKEN_CALL),  # no call succeeds after it
        ([Reply(error_status=503), GOOD], twice, ""),  # the same call succeeds later
        ([Reply(drop_after=0), GOOD], twice_streamed, ""),
        ([Reply(error_status=400)], once, Reason.NO_TOKENS),  # the agent's own mistake
        ([Reply(error_status=400), GOOD], twice, ""),
        # The tokens of the answer that broke off are in no row.
        ([Reply("one two three four", drop_after=3), GOOD], twice_streamed, ""),
    ],
)
async def test_failed_calls(script: list[Reply], agent: Agent, reason: str):
    decision = decision_on(await outcome_of(script, agent))
    assert decision.reason == reason
    assert (decision.sample is None) == bool(reason)


async def test_a_title_call_has_no_say_in_whether_a_rollout_is_used():
    """It has a temperature that is not trained, ends at a limit, or fails; its tokens are not."""
    title = "Generate a title for this conversation: Hello"

    async def agent(client: AsyncOpenAI, **options: Any) -> None:
        await ask(client)
        await ask(client, title, temperature=0.1, max_tokens=2)

    for script in ([GOOD], [GOOD, Reply(error_status=500)]):
        outcome = await outcome_of(script, agent)
        decision = decision_on(outcome, on_overlong="drop")
        assert decision.reason == ""
        assert decision.sample is not None
        assert [sum(row.mask) for row in decision.sample.rows] == [3]
    kept = {"llm": Learner(GRPOConfig(model="m"), "m")}
    outcome = await outcome_of([GOOD], agent)
    trained = decide(outcome, TraceToTrajectory(keep_auxiliary=True), kept, {"step-3"})["llm"]
    assert trained.reason == Reason.OTHER_SAMPLING


async def test_a_rollout_without_model_calls_is_unusable():
    async def idle(client: AsyncOpenAI) -> None:
        return

    assert decision_on(await outcome_of([], idle)).reason == Reason.NO_TOKENS


@pytest.mark.parametrize(
    ("reward", "reason"),
    [(None, Reason.NO_REWARD), (math.nan, Reason.BAD_REWARD), (math.inf, Reason.BAD_REWARD)],
)
async def test_missing_and_non_finite_rewards_are_unusable(reward: float | None, reason: str):
    decision = decision_on(await outcome_of([GOOD], once, reward=reward))
    assert (decision.sample, decision.reason, decision.rows) == (None, reason, 1)
    certificates = decision.certificates
    assert (certificates.rows, certificates.with_ids, certificates.with_logprobs) == (1, 1, 1)


async def test_failed_rollouts_follow_on_failure():
    outcome = await outcome_of([GOOD], once, reward=None, status="failed")
    dropped = decision_on(outcome)
    assert (dropped.sample, dropped.reason, dropped.failed) == (None, "rollout failed", True)
    penalised = decision_on(outcome, on_failure="penalise", failure_reward=-1.0)
    assert penalised.sample is not None
    assert penalised.sample.reward == -1.0
    assert penalised.failed  # it is repeated before the penalty applies
    # The server failed, not the agent, so the penalty does not apply.
    broken = await outcome_of([Reply(error_status=500)], once, reward=None, status="failed")
    assert decision_on(broken, on_failure="penalise").sample is None


@pytest.mark.parametrize("penalty", [None, -1.0])
async def test_a_penalised_rollout_keeps_no_number_that_it_emitted(penalty: float | None):
    options: dict[str, Any] = {"credit": "agents", "advantage": "group-mean"}
    cut = Reply("one two", finish_reason="length")
    for script, more in (
        ([GOOD], {"on_failure": "penalise", "failure_reward": penalty}),
        ([cut], {"on_overlong": "penalise", "overlong_reward": penalty}),
    ):
        status = "succeeded" if script == [cut] else "failed"
        outcome = await outcome_of(script, once, reward=1.0, status=status)
        found = decision_on(outcome, **options, **more).sample
        assert found is not None
        assert found.rewards == {}
        assert found.reward == (FAILURE if penalty is None else penalty)


async def test_truncated_answers_follow_on_overlong():
    outcome = await outcome_of([Reply("one two", finish_reason="length")], once)
    assert decision_on(outcome).sample is not None
    dropped = decision_on(outcome, on_overlong="drop")
    assert (dropped.sample, dropped.reason, dropped.failed) == (None, Reason.CUT_OFF, False)
    penalised = decision_on(outcome, on_overlong="penalise", overlong_reward=-0.25)
    assert penalised.sample is not None
    assert penalised.sample.reward == -0.25


async def test_tokens_of_another_policy_are_dropped():
    stale = await outcome_of([GOOD], once, version="step-2")
    assert decision_on(stale).reason == Reason.OTHER_WEIGHTS

    async def cool(client: AsyncOpenAI) -> None:
        await ask(client, temperature=0.5)

    async def narrow(client: AsyncOpenAI) -> None:
        await ask(client, top_p=0.9)

    outcome = await outcome_of([GOOD], cool)
    assert decision_on(outcome).reason == Reason.OTHER_SAMPLING
    assert decision_on(outcome, temperature=0.5).reason == ""
    assert decision_on(await outcome_of([GOOD], narrow)).reason == Reason.OTHER_SAMPLING


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"repetition_penalty": 1.2}, Reason.OTHER_SAMPLING),
        ({"temperature": 0.5}, Reason.OTHER_SAMPLING),
        ({"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}, ""),
    ],
)
async def test_parameters_of_the_proxys_entry_count_as_the_agents(
    entry: dict[str, Any], reason: str
):
    assert decision_on(await outcome_of([GOOD], once, entry=entry)).reason == reason


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.5},
        {"logit_bias": {"5": -100}},
        {"response_format": {"type": "json_object"}},
        {"temperature": 0},
        {"tool_choice": "required", "tools": [TOOL]},
        *(
            {"extra_body": one}
            for one in (
                {"repetition_penalty": 1.2},
                {"min_p": 0.1},
                {"top_k": 1},
                {"min_tokens": 5},
                {"ignore_eos": True},
                {"bad_words": ["no"]},
                {"allowed_token_ids": [1, 2]},
                {"structured_outputs": {"choice": ["a"]}},
                {"guided_regex": "a+"},
            )
        ),
    ],
)
async def test_other_distributions_are_refused_and_not_repeated(options: dict[str, Any]):
    decision = decision_on(await outcome_of([GOOD], lambda client: ask(client, **options)))
    assert decision.reason == Reason.OTHER_SAMPLING
    assert not decision.failed
    name, *_ = options.get("extra_body", options)
    assert decision.detail.startswith(f"{name}=")


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 0, "frequency_penalty": 0.0, "top_p": 1, "logit_bias": {}},
        {"response_format": {"type": "text"}, "temperature": 1.0, "max_tokens": 9, "stop": "x"},
        {"extra_body": {"repetition_penalty": 1.0, "min_p": 0.0, "top_k": -1, "min_tokens": 0}},
        {"extra_body": {"top_k": 0, "bad_words": [], "ignore_eos": False}, "tool_choice": "auto"},
    ],
)
async def test_neutral_parameters_are_allowed(options: dict[str, Any]):
    decision = decision_on(await outcome_of([GOOD], lambda client: ask(client, **options)))
    assert decision.reason == ""


@pytest.mark.parametrize(("factor", "shift"), [(1, 0), (1, -5), (10, 3), (0, 2)])
@pytest.mark.parametrize("how", ["group", "group-mean", "rloo"])
async def test_failures_are_never_reinforced(factor: float, shift: float, how: Any):
    rewards = [factor * r + shift for r in (-3.0, -2.0)]
    good = [await outcome_of([GOOD], once, reward=reward) for reward in rewards]
    bad = [
        await outcome_of([GOOD], once, reward=None, status="failed"),
        await outcome_of([GOOD], once, reward=9e9, status="failed"),  # emitted before the crash
    ]
    decisions = [decision_on(one, on_failure="penalise") for one in [*good, *bad]]
    step = Step.of([decisions], GRPOConfig(model="m", group_size=4))
    counted = torch.tensor([one.reward for one in step.samples], dtype=torch.float64)
    assert all(math.isfinite(reward) for reward in step.rewards)
    advantages = group_advantages(counted, torch.zeros(4, dtype=torch.int64), how)
    assert max(advantages[2:]) < min(advantages[:2])
    assert max(advantages[2:]) < 0


async def test_failure_counts_the_lower_end_of_a_declared_range():
    good = decision_on(await outcome_of([GOOD], once, reward=-2.0))
    outcome = await outcome_of([GOOD], once, reward=None, status="failed")
    bad = decision_on(outcome, on_failure="penalise")
    config = GRPOConfig(model="m", group_size=2)
    step = Step.of([[good, bad]], config, reward_range=RewardRange(-9, 0))
    assert step.rewards == [-2.0, -9.0]


async def test_truncated_rollouts_are_below_the_others():
    cut = Reply("one two three", finish_reason="length")
    outcomes = [await outcome_of([GOOD], once, reward=-2.0), await outcome_of([cut], once)]
    decisions = [decision_on(one, on_overlong="penalise") for one in outcomes]
    step = Step.of([decisions], GRPOConfig(model="m", group_size=2))
    assert step.rewards == [-2.0, -3.0]


async def test_a_call_with_several_choices_is_trained_only_if_the_history_shows_which():
    several = Reply("first answer here", others=("second one", "the third answer is used"))

    async def unknown(client: AsyncOpenAI) -> None:
        await ask(client, n=3)

    decision = decision_on(await outcome_of([several], unknown))
    assert decision.reason == Reason.SEVERAL_CHOICES
    assert decision.sample is None


async def test_rows_that_are_too_long_are_dropped():
    decision = decision_on(await outcome_of([GOOD], once), max_row_tokens=5)
    assert decision.reason == Reason.TOO_LONG


def sample(reward: float) -> Decision:
    return Decision(Sample("r", reward, [TrajectoryRow(agent="*")]), rows=1)


def test_a_step_counts_everything_it_drops():
    lost = Decision(None, "rollout failed", 2)
    config = GRPOConfig(model="m", group_size=3)
    step = Step.of([[sample(1), sample(0), sample(1)], [sample(1), lost, sample(0)]], config)
    assert [group.index for group in step.groups] == [0]
    assert len(step.samples) == 3
    assert step.dropped == {"rollout failed": 1, "its group is too small": 2}
    assert (step.dropped_rows, step.dropped_groups, step.partial) == (4, 1, 0)
    assert step.rewards == [1, 0, 1, 1, 0]
    assert step.describe_dropped() == "2 (its group is too small), 1 (rollout failed)"

    lax = Step.of(
        [[sample(1), lost, sample(0)]], GRPOConfig(model="m", group_size=3, min_group_size=2)
    )
    assert (len(lax.samples), lax.partial, lax.dropped_groups) == (2, 1, 0)
    assert lax.groups[0].missing == 1
    assert lax.dropped == {"rollout failed": 1}


def test_uniform_groups_are_dropped_only_if_they_are_replaced():
    decisions = [[sample(1), sample(1)], [sample(1), sample(0)]]
    kept = Step.of(decisions, GRPOConfig(model="m", group_size=2))
    assert (len(kept.groups), kept.uniform, kept.dropped_groups) == (2, 1, 0)
    replaced = Step.of(decisions, GRPOConfig(model="m", group_size=2, resample=1))
    assert [group.index for group in replaced.groups] == [1]
    assert (replaced.uniform, replaced.dropped_groups) == (1, 1)
    assert replaced.dropped == {"the rewards of its group are all equal": 2}
    assert replaced.rewards == [1, 1, 1, 0]


def test_a_group_with_equal_final_rewards_may_teach_by_turn():
    def talk(name: str, *first: float) -> Decision:
        row = TrajectoryRow(
            agent="*",
            token_ids=[1, 2, 3, 4],
            mask=[0, 1, 0, 1],
            logprobs=[0.0, -1.0, 0.0, -1.0],
            responses=[(1, 2), (3, 4)],
            rewards=[*first, None],
            span_ids=["a", "b"],
        )
        return Decision(Sample(name, 1.0, [row], calls=[(0, 0), (0, 1)]), rows=1)

    decisions = [[talk("x", 0.5), talk("y", 0.0)], [talk("x", 0.5), talk("y", 0.5)]]
    cases: list[tuple[Any, list[int]]] = [("discounted", [0]), ("group", [])]
    for credit, useful in cases:
        config = GRPOConfig(model="m", group_size=2, resample=1, credit=CreditConfig(type=credit))
        step = Step.of(decisions, config)
        assert [group.index for group in step.groups] == useful
        assert step.uniform == 2 - len(useful)


# -- with a tracer: a row names the span of the agent's own client ---------------------------------


def traced(outcome: RolloutOutcome, tries: int = 1) -> RolloutOutcome:
    """Return an outcome with a client's span above the proxy's spans of each call.

    Args:
        outcome: The outcome.
        tries: Number of calls of the proxy that the client makes for its first call.
    """
    spans: list[Span] = []
    calls = [span for span in outcome.spans if span.name == semconv.SPAN_MODEL_CALL]
    parts = [calls[:tries], *([call] for call in calls[tries:])]
    for number, part in enumerate(parts):
        own = {
            key: value
            for key, value in part[-1].attributes.items()
            if "token_ids" not in key and not key.startswith(("agl.", semconv.MODEL_VERSION))
        }
        client = f"{number:016x}"
        start = {"start_time": part[0].start_time, "attributes": own}
        spans += [call.model_copy(update={"parent_id": client}) for call in part]
        top = {"span_id": client, "name": "openai.chat", "parent_id": None, **start}
        spans.append(part[-1].model_copy(update=top))
    return replace(outcome, spans=spans)


async def go_on_with_the_second(client: AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    answer = await client.chat.completions.create(model="m", messages=messages, n=2)
    text = answer.choices[1].message.content
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "on"}]
    await client.chat.completions.create(model="m", messages=messages)


async def test_the_used_choice_is_known_also_with_a_tracer():
    script = [Reply("first answer here", others=["second one"]), GOOD]
    outcome = await outcome_of(script, go_on_with_the_second)
    plain, with_tracer = decision_on(outcome), decision_on(traced(outcome))
    assert plain.reason == with_tracer.reason == ""
    assert with_tracer.sample is not None
    rows = with_tracer.sample.rows
    assert {name for row in rows for name in row.span_ids} <= {f"{i:016x}" for i in range(2)}
    unknown = await outcome_of(script, lambda client: ask(client, n=2))
    assert decision_on(traced(unknown)).reason == Reason.SEVERAL_CHOICES


async def test_a_try_that_failed_does_not_spoil_the_call_that_a_client_repeated():
    outcome = await outcome_of([Reply(error_status=503), GOOD], twice)
    assert decision_on(traced(outcome, tries=2)).reason == ""


async def test_an_answer_during_which_weights_changed_is_dropped():
    outcome = await outcome_of([GOOD], once)

    def changed(span: Span) -> Span:
        end = {semconv.MODEL_VERSION + ".end": "step-4"}
        return span.model_copy(update={"attributes": {**span.attributes, **end}})

    both = replace(outcome, spans=[changed(span) for span in outcome.spans])
    for one in (both, traced(both)):
        learners = {"llm": Learner(GRPOConfig(model="m"), "m")}
        found = decide(one, TraceToTrajectory(), learners, {"step-3", "step-4"})["llm"]
        assert found.reason == Reason.OTHER_WEIGHTS
