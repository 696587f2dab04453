"""The judge on a scripted model, over HTTP: verdicts, their spans, agreement, and bad answers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from agl_core.algorithm import RolloutOutcome
from agl_core.emitter import find_final_reward
from agl_core.errors import InvalidArgumentError
from agl_core.otel import extract_links_from_attributes, extract_tags_from_attributes
from agl_core.types import Span
from agl_judge import Judge, Verdict, agreement
from agl_scripted import Reply, ScriptedModels, SeenRequest
from agl_store_memory import InMemoryLightningStore

RUBRIC = "10: polite {and} right. 0: neither."
TALK = [
    {"role": "user", "content": "A room for 4?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "rooms", "arguments": "{}"}}],
    },
    {"role": "assistant", "content": "R05"},
]


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    with ScriptedModels([Reply('{"reason": "fits", "score": 8}')]) as server:
        yield server


@pytest.fixture
async def judge(models: ScriptedModels) -> AsyncIterator[Judge]:
    async with AsyncOpenAI(base_url=models.base_url, api_key="none", max_retries=0) as client:
        yield Judge(client, "judge-model", rubric=RUBRIC, timeout=5, seed=3)


def talk(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]


class TestGrade:
    async def test_a_grade_is_a_score_from_0_to_1(self, judge: Judge, models: ScriptedModels):
        assert await judge.grade(TALK) == Verdict(0.8, "fits")
        (request,) = models.requests
        system, user = request.body["messages"]
        assert f"<rubric>\n{RUBRIC}\n</rubric>" in system["content"]
        assert "assistant: R05" in user["content"]
        assert 'calls {"name": "rooms", "arguments": "{}"}' in user["content"]
        assert (request.body["model"], request.body["temperature"], request.body["seed"]) == (
            "judge-model",
            0.0,
            3,
        )

    @pytest.mark.parametrize(
        ("text", "score"),
        [
            ('```json\n{"score": 10}\n```', 1.0),
            ('My {honest} view: {"score": 2.5, "reason": null} as said', 0.25),
            ('{"score": 0}', 0.0),
        ],
    )
    async def test_words_and_fences_around_the_json_are_ignored(
        self, judge: Judge, models: ScriptedModels, text: str, score: float
    ):
        models.script = [Reply(text)]
        assert await judge.grade(TALK) == Verdict(score, "")

    @pytest.mark.parametrize(
        "text",
        [
            '<think>At first {"reason": "no", "score": 2}. But</think>\n{"reason": "", "score": 9}',
            '<think>Like {"reason": "...", "score": 0}?</think>It called f({}): {"score": 9}',
            'The agent called book({"room": {"score": 1}}), so: {"score": 9}',
            'First {"score": 2}, but it is polite: {"score": 9}. It called book({"room": "A"}).',
            '{"score": 9, "parts": {"score": 1}}',
        ],
    )
    async def test_the_last_verdict_after_the_thoughts_counts(
        self, judge: Judge, models: ScriptedModels, text: str
    ):
        models.script = [Reply(text)]
        assert await judge.grade(TALK) == Verdict(0.9, "")

    @pytest.mark.parametrize(
        ("reply", "problem"),
        [
            (Reply('<think>{"score": 9}'), "the answer contains no JSON object"),
            (Reply('{"score":' * 3000), "the answer contains no JSON object"),
            (Reply('{"score": "9"}, or {"grade": 9}'), "the score is not a number: None"),
            (Reply("Splendid!"), "the answer contains no JSON object"),
            (Reply('{"score": "8"}'), "the score is not a number: '8'"),
            (Reply('{"score": true}'), "the score is not a number: True"),
            (Reply('{"score": 11}'), "the score is not from 0 to 10: 11"),
            (Reply('{"score": NaN}'), "the score is not a number: nan"),
            (Reply('{"grade": 8}'), "the score is not a number: None"),
            (Reply(""), "the answer is empty"),
            (Reply(error_status=500), "InternalServerError: "),
            (Reply(garbage=b'{"choices": 1}'), "the answer is not a chat completion"),
        ],
    )
    async def test_an_invalid_verdict_is_requested_again_then_reported(
        self, judge: Judge, models: ScriptedModels, reply: Reply, problem: str
    ):
        models.script = [reply]
        verdict = await judge.grade(TALK)
        assert verdict.score is None
        assert verdict.problem.startswith(problem)
        assert [r.body["seed"] for r in models.requests] == [3, 4]

    async def test_the_second_answer_counts(self, judge: Judge, models: ScriptedModels):
        models.script = [Reply("Hm."), Reply('{"score": 5}')]
        assert (await judge.grade(TALK)).score == 0.5

    async def test_no_answer_in_time_is_a_problem(self, models: ScriptedModels):
        models.script = [Reply(delay=30)]
        async with AsyncOpenAI(base_url=models.base_url, api_key="none", max_retries=0) as client:
            slow = Judge(client, "m", rubric=RUBRIC, timeout=0.1, attempts=1)
            assert (await slow.grade(TALK)).problem == "no answer within 0.1 s"

    def test_arguments_are_checked(self):
        client: Any = None
        with pytest.raises(InvalidArgumentError, match="rubric"):
            Judge(client, "m", rubric=" ")
        with pytest.raises(InvalidArgumentError, match="attempts"):
            Judge(client, "m", rubric="r", attempts=0)


def by_length(request: SeenRequest) -> Reply:
    """Rank the longest answer first, wherever it is shown."""
    text = request.body["messages"][-1]["content"]
    shown = re.findall(r'number="(\d+)">\n.*?assistant: (\w+)\n', text, re.DOTALL)
    numbers = [int(number) for number, _ in sorted(shown, key=lambda pair: -len(pair[1]))]
    return Reply(json.dumps({"ranking": numbers, "reason": "length"}))


class TestRank:
    async def test_scores_follow_the_ranking_whatever_the_order_shown(
        self, judge: Judge, models: ScriptedModels
    ):
        models.script = by_length
        for order in (["a", "aaa", "aa"], ["aaa", "aa", "a"], ["aa", "a", "aaa"]):
            verdicts = await judge.rank([talk(text) for text in order])
            assert [v.score for v in verdicts] == [(len(text) - 1) / 2 for text in order]
            assert {(v.kind, v.reason) for v in verdicts} == {("rank", "length")}

    async def test_the_order_of_conversations_varies(self, judge: Judge, models: ScriptedModels):
        models.script = by_length
        firsts: set[str] = set()
        for number in range(12):
            await judge.rank([talk(f"x{number}"), talk(f"y{number}")])
            shown = models.requests[-1].body["messages"][-1]["content"]
            firsts.add("x" if shown.index(f"x{number}") < shown.index(f"y{number}") else "y")
        assert firsts == {"x", "y"}

    async def test_the_last_ranking_after_the_thoughts_counts(
        self, judge: Judge, models: ScriptedModels
    ):
        plain, thought = [Reply('{"ranking": [1, 2]}')], '<think>{"ranking": [2, 1]}</think>'
        group = [talk("a"), talk("b")]
        models.script = plain
        wanted = await judge.rank(group)
        models.script = [Reply(thought + 'It called f({"x": 1}). {"ranking": [1, 2]}')]
        assert await judge.rank(group) == wanted

    @pytest.mark.parametrize("ranking", [[1], [1, 1], [0, 1], [1, 2, 3], "12", None])
    async def test_an_invalid_ranking_is_a_problem_of_every_verdict(
        self, judge: Judge, models: ScriptedModels, ranking: Any
    ):
        models.script = [Reply(json.dumps({"ranking": ranking}))]
        verdicts = await judge.rank([talk("a"), talk("b")])
        assert [v.score for v in verdicts] == [None, None]
        assert all(
            v.problem.startswith("the ranking is not a permutation of 1 to 2") for v in verdicts
        )

    async def test_a_single_conversation_cannot_be_ranked(self, judge: Judge):
        with pytest.raises(InvalidArgumentError):
            await judge.rank([talk("a")])


async def finished(store: InMemoryLightningStore, text: str | None) -> RolloutOutcome:
    """Return a finished rollout whose agent answered with this text, or with nothing."""
    started = await store.start_rollout(input=text)
    ids = started.rollout_id, started.attempt.attempt_id
    span = Span.from_attributes(
        name="chat", attributes={}, rollout_id=ids[0], attempt_id=ids[1], sequence_id=1
    )
    await store.add_span(span)
    await store.update_attempt(*ids, status="succeeded")
    rollout = await store.get_rollout_by_id(ids[0])
    assert rollout is not None
    adapted = None if text is None else [{"messages": talk("first")}, {"messages": talk(text)}]
    return RolloutOutcome(rollout, None, [span], adapted)


class TestRollouts:
    async def test_a_grade_becomes_the_final_reward_with_its_origin(
        self, judge: Judge, models: ScriptedModels
    ):
        store = InMemoryLightningStore()
        outcomes = [await finished(store, "R05"), await finished(store, None)]
        verdicts = await judge.grade_batch(store, outcomes)
        assert [v.score for v in verdicts] == [0.8, None]
        assert verdicts[1].problem == "no messages were recorded"
        assert len(models.requests) == 1
        spans = (await store.query_spans(outcomes[0].rollout.rollout_id)).items
        assert find_final_reward(spans) == 0.8
        said = spans[-1].attributes
        assert said["agentlightning.reward.0.name"] == "judge"
        assert said["judge.model"] == "judge-model"
        assert said["judge.rubric"] == RUBRIC
        assert said["judge.reason"] == "fits"
        assert said["judge.kind"] == "grade"
        assert extract_tags_from_attributes(said) == ["judge"]
        links = {link.key_match: link.value_match for link in extract_links_from_attributes(said)}
        assert links == {"trace_id": spans[0].trace_id, "span_id": spans[0].span_id}
        rollout = await store.get_rollout_by_id(outcomes[0].rollout.rollout_id)
        assert rollout is not None
        assert rollout.status == "succeeded"

    async def test_rollouts_without_messages_are_not_ranked(
        self, judge: Judge, models: ScriptedModels
    ):
        models.script = by_length
        store = InMemoryLightningStore()
        outcomes = [await finished(store, text) for text in ("a", None, "aaa", "aa")]
        verdicts = await judge.rank_batch(store, outcomes)
        assert [v.score for v in verdicts] == [0.0, None, 1.0, 0.5]
        rewards = [
            find_final_reward((await store.query_spans(one.rollout.rollout_id)).items)
            for one in outcomes
        ]
        assert rewards == [0.0, None, 1.0, 0.5]

    async def test_a_single_rollout_with_messages_is_not_ranked(
        self, judge: Judge, models: ScriptedModels
    ):
        store = InMemoryLightningStore()
        outcomes = [await finished(store, "a"), await finished(store, None)]
        verdicts = await judge.rank_batch(store, outcomes)
        assert [v.problem for v in verdicts] == [
            "no other rollout has messages to compare with",
            "no messages were recorded",
        ]
        assert not models.requests

    async def test_a_failed_judge_stores_nothing(self, judge: Judge, models: ScriptedModels):
        models.script = [Reply(error_status=500)]
        store = InMemoryLightningStore()
        outcome = await finished(store, "R05")
        await judge.grade_batch(store, [outcome])
        spans = (await store.query_spans(outcome.rollout.rollout_id)).items
        assert find_final_reward(spans) is None


class TestAgreement:
    def test_figures_are_those_of_a_worked_example(self):
        found = agreement([1.0, 0.5, 0.5, 0.0, None, 1.0], [1, 1, 0, 0, 1, 0])
        assert (found.n, found.missing) == (5, 1)
        # good by the judge: 1, 2, 3, 6; by the labels: 1, 2 (of the five that have a score)
        assert found.accuracy.mean == pytest.approx(3 / 5)
        by_chance = 4 / 5 * 2 / 5 + 1 / 5 * 3 / 5
        assert found.kappa == pytest.approx((3 / 5 - by_chance) / (1 - by_chance))
        assert found.error == pytest.approx((0 + 0.5 + 0.5 + 0 + 1) / 5)
        # (1.0, 0.5) against (0.5, 0.0, 1.0): won 1, 1, tie / tie, won 1, lost
        assert found.ordered == pytest.approx((1 + 1 + 0.5 + 0.5 + 1 + 0) / 6)
        assert str(found).startswith("accuracy 0.600 [")

    def test_labels_on_one_side_say_nothing_about_chance(self):
        found = agreement([1.0, 1.0], [1, 1])
        assert (found.kappa, found.ordered, found.accuracy.mean) == (None, None, 1.0)
        assert "kappa -" in str(found)

    def test_arguments_are_checked(self):
        with pytest.raises(InvalidArgumentError, match="2 scores for 1 labels"):
            agreement([1.0, 0.0], [1])
        with pytest.raises(InvalidArgumentError, match="no score"):
            agreement([None], [1])
