"""Groups of rollouts: executed by a scripted runner, retried, dropped, counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest

from agl_adapter_trajectory import TraceToTrajectory
from agl_algo_verl import VERLConfig
from agl_algo_verl.decisions import Limits
from agl_algo_verl.rollout_groups import GroupRow, GroupRunner, GroupSettings, Prompt
from agl_algo_verl.rows import Row, RowBuilder
from agl_algorithm_kit import StoredRun
from agl_core import semconv
from agl_core.errors import AgentError, RunFailedError
from agl_core.types import LLM, AttemptedRollout, Span
from agl_credit import Path, Turn, forked_advantages
from agl_store_memory import InMemoryLightningStore

TASKS = [{"question": "zero"}, {"question": "one"}]


class Published:
    """A publisher that records what the trainer would read."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def begin(self, prompt: Prompt) -> None:
        self.events.append(("begin", prompt.uid))

    def end(self, prompt: Prompt, rows: Sequence[GroupRow], *, usable: bool) -> None:
        self.events.append(("usable" if usable else "dropped", list(rows)))

    def placeholder(self) -> Row:
        return Row([0], [0], [0], [0.0], None, turns=0)

    @property
    def rows(self) -> list[GroupRow]:
        return self.events[-1][1]


Act = Callable[[AttemptedRollout, int], "Outcome"]


class Outcome:
    """The scripted outcome of an attempt.

    ``answers`` has the first token of each answer, ``asked`` what the last call asks for.
    """

    def __init__(
        self,
        reward: float | None = None,
        calls: int = 1,
        status: Any = "succeeded",
        answers: Sequence[int] = (),
        numbers: Mapping[str, float] | None = None,
        asked: Mapping[str, Any] | None = None,
    ):
        self.reward, self.status, self.numbers = reward, status, numbers or {}
        self.answers = answers or (7,) * calls
        self.asked = asked or {}


class Workers:
    """A runner that executes a script: a function of the rollout and the attempt."""

    def __init__(self, store: InMemoryLightningStore, act: Act) -> None:
        self.store, self.act = store, act
        self.done: list[tuple[Any, int]] = []

    async def run(self) -> None:
        while True:
            attempted = await self.store.dequeue_rollout("Worker-0", wait=5.0)
            if attempted is not None:
                await self.work(attempted)

    async def work(self, attempted: AttemptedRollout) -> None:
        number = attempted.attempt.sequence_id
        outcome = self.act(attempted, number)
        self.done.append((attempted.input, number))
        names = (attempted.rollout_id, attempted.attempt.attempt_id)
        replay = attempted.config.replay
        repeated = (replay.until or 0) if replay else 0
        spans = [
            call(place, answer, repeated=place < repeated)
            for place, answer in enumerate(outcome.answers)
        ]
        if spans:
            spans[-1].attributes.update(outcome.asked)
        if outcome.reward is not None:
            spans.append(reward(len(spans), outcome.reward, outcome.numbers))
        for span in spans:
            await self.store.add_span(
                span.model_copy(update={"rollout_id": names[0], "attempt_id": names[1]})
            )
        await self.store.update_attempt(
            *names,
            status=outcome.status,
            metadata={"error": "said so", "error_type": "RuntimeError"}
            if outcome.status == "failed"
            else {},
        )


def call(place: int, answer: int = 7, *, repeated: bool = False) -> Span:
    logprobs = '[{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]'
    return Span.from_attributes(
        attributes={
            "gen_ai.operation.name": "chat",
            "prompt_token_ids": [10 * place + 1],
            "response_token_ids": [answer, 8],
            "agl.proxy.protocol": "chat",
            **({semconv.REPLAYED_CALL: place + 1} if repeated else {}),
            "logprobs.content": logprobs,
            "agentlightning.model_version": "5",
        },
        sequence_id=place + 1,
        span_id=f"{place:016x}",
        trace_id="t" * 32,
        start_time=float(place),
        end_time=place + 0.5,
        name="agl.proxy.openai.chat.completion",
    )


def reward(place: int, value: float, numbers: Mapping[str, float]) -> Span:
    named = enumerate({"primary": value, **numbers}.items())
    return Span.from_attributes(
        attributes={
            f"agentlightning.reward.{i}.{key}": part
            for i, one in named
            for key, part in zip(("name", "value"), one, strict=True)
        },
        sequence_id=place + 1,
        span_id="r" * 16,
        trace_id="t" * 32,
        start_time=place + 1.0,
        end_time=place + 1.0,
        name="agentlightning.annotation",
    )


class Setup:
    def __init__(self, store: InMemoryLightningStore) -> None:
        self.store = store
        self.published = Published()
        self.changed = 0
        self.suspected = 0

    async def feed(
        self, act: Act, *prompts: Prompt, n: int = 4, **options: Any
    ) -> tuple[GroupRunner, Workers]:
        runner, workers = await self.prepare(act, n=n, **options)
        async with anyio.create_task_group() as group:
            group.start_soon(workers.run)
            with anyio.fail_after(60):
                for prompt in prompts or (Prompt("g0", 1, 3),):
                    await runner.run_group(prompt)
            group.cancel_scope.cancel()
        return runner, workers

    async def prepare(self, act: Act, *, n: int = 4, **options: Any) -> tuple[GroupRunner, Workers]:
        snapshot = await self.store.add_resources({"main_llm": LLM(endpoint="http://x", model="m")})

        def changed() -> None:
            self.changed += 1

        def suspect() -> None:
            self.suspected += 1

        runner = GroupRunner(
            self.store,
            StoredRun(self.store, "test"),
            VERLConfig(**options),
            GroupSettings(
                n_train=n,
                n_val=2,
                limits=Limits(100, 100),
                batch="0.0",
                tasks=2,
                sampling={"temperature": 1.0},
                normalise=False,
            ),
            datasets={"train": TASKS, "val": TASKS},
            resources={"train": snapshot.resources_id, "val": snapshot.resources_id},
            builder=RowBuilder("transition", TraceToTrajectory(), by_turn="credit" in options),
            publisher=self.published,
            changed=changed,
            suspect=suspect,
        )
        return runner, Workers(self.store, act)


@pytest.fixture
async def setup() -> Setup:
    return Setup(InMemoryLightningStore())


class TestGoodGroups:
    async def test_every_rollout_becomes_rows_of_its_own_reward(self, setup: Setup):
        runner, workers = await setup.feed(lambda a, n: Outcome(reward=0.5, calls=2))
        assert workers.done == [(TASKS[1], 1)] * 4
        assert [event[0] for event in setup.published.events] == ["begin", "usable"]
        rows = setup.published.rows
        assert [(r.session, r.index) for r in rows] == [(s, i) for s in range(4) for i in (0, 1)]
        assert {(r.reward, r.turns, r.row.versions) for r in rows} == {(0.5, 2, (5, 5))}
        assert rows[0].row.prompt_ids == [1]
        assert rows[1].row == Row([11], [7, 8], [1, 1], [-0.5, -0.25], (5, 5))
        metrics = runner.take_metrics("train")
        assert metrics["agl/rows"] == 8
        assert metrics["agl/rollouts"] == metrics["training/n_rollouts_w_reward"] == 4
        assert metrics["training/reward"] == 0.5
        assert metrics["agl/rows_dropped"] == metrics["agl/groups_partial"] == 0
        assert setup.changed == 1
        assert runner.take_metrics("train")["agl/rows"] == 0  # counted once

    async def test_tasks_say_what_they_are_for(self, setup: Setup):
        await setup.feed(lambda a, n: Outcome(reward=0.5))
        rollout = (await setup.store.query_rollouts()).items[0]
        assert rollout.mode == "train"
        assert rollout.metadata is not None
        wanted = {"data_id": "g0", "is_train": True, "step": 3, "run": "test"}
        assert {key: rollout.metadata[key] for key in wanted} == wanted
        assert rollout.config.timeout_seconds == 1200.0


class TestTroubledRollouts:
    async def test_a_failed_one_is_tried_again(self, setup: Setup):
        def act(attempted: Any, number: int) -> Outcome:
            bad = number == 1 and attempted.rollout_id.endswith(first(attempted))
            return Outcome(0.5, status="failed" if bad else "succeeded")

        chosen: list[str] = []

        def first(attempted: Any) -> str:
            chosen.append(attempted.rollout_id)
            return chosen[0]

        runner, workers = await setup.feed(act)
        assert len(workers.done) == 5
        assert len({row.session for row in setup.published.rows}) == 4
        metrics = runner.take_metrics("train")
        assert metrics["agl/rollouts_retried"] == metrics["agl/rollouts_failed"] == 1
        assert metrics["agl/rollouts"] == 4
        assert metrics["agl/groups_partial"] == 0
        assert setup.suspected == 1

    async def test_what_always_fails_is_dropped_and_the_group_says_so(
        self, setup: Setup, caplog: pytest.LogCaptureFixture
    ):
        chosen: list[str] = []

        def act(attempted: Any, number: int) -> Outcome:
            chosen.append(attempted.rollout_id)
            return Outcome(
                0.5, status="failed" if attempted.rollout_id == chosen[0] else "succeeded"
            )

        runner, workers = await setup.feed(act, max_retries=2)
        assert max(number for _, number in workers.done) == 3
        assert len({row.session for row in setup.published.rows}) == 3
        metrics = runner.take_metrics("train")
        assert metrics["agl/groups_partial"] == metrics["agl/rollouts_dropped"] == 1
        assert metrics["agl/rows_dropped"] == 1
        assert metrics["training/n_rollouts"] == 4
        assert "step 3 trains on 3 of 4 rollouts of task 1: {'failed': 1}" in caplog.text

    async def test_half_a_group_is_dropped_where_whole_ones_are_wanted(
        self, setup: Setup, caplog: pytest.LogCaptureFixture
    ):
        seen: list[str] = []

        def act(attempted: Any, number: int) -> Outcome:
            seen.append(attempted.rollout_id)
            return Outcome(0.5, status="failed" if attempted.rollout_id == seen[0] else "succeeded")

        runner, _ = await setup.feed(act, on_failed="drop", min_group_size=4)
        assert setup.published.events[-1] == ("dropped", [])
        metrics = runner.take_metrics("train")
        assert metrics["agl/groups_dropped"] == 1
        assert metrics["agl/rows_dropped_with_group"] == 3
        assert metrics["agl/rows"] == 0
        assert "task 1 is dropped from step 3: 3 of 4 rollouts are usable" in caplog.text

    async def test_a_penalty_is_trained_on(self, setup: Setup):
        runner, _ = await setup.feed(
            lambda a, n: Outcome(0.5, status="failed"), on_failed="penalise", penalty=-1.0
        )
        assert {row.reward for row in setup.published.rows} == {-1.0}
        assert runner.take_metrics("train")["agl/rollouts_penalised"] == 4

    async def test_an_agent_that_always_fails_ends_the_run(self, setup: Setup):
        options: Any = {"on_failed": "drop", "max_failed_groups": 2}
        prompts = (Prompt("g0", 0, 1), Prompt("g1", 1, 1))
        with pytest.raises(ExceptionGroup) as raised:
            await setup.feed(lambda a, n: Outcome(status="failed"), *prompts, **options)
        with pytest.raises(AgentError, match=r"2 tasks in a row .* 0 of 4 .*\{'failed': 4\}"):
            raise raised.value.exceptions[0]

    async def test_a_good_group_forgives_the_bad_ones_before_it(self, setup: Setup):
        def act(attempted: Any, number: int) -> Outcome:
            return Outcome(0.5, status="failed" if attempted.input == TASKS[0] else "succeeded")

        prompts = [Prompt(f"g{place}", place % 2, 1) for place in range(6)]
        runner, _ = await setup.feed(act, *prompts, on_failed="drop", max_failed_groups=2)
        assert runner.take_metrics("train")["agl/groups_dropped"] == 3

    @pytest.mark.parametrize("temperature", [0.7, 0])
    async def test_an_agent_that_samples_otherwise_ends_the_run_after_a_step(
        self, setup: Setup, temperature: float
    ):
        def act(attempted: Any, number: int) -> Outcome:
            return Outcome(0.5, calls=2, asked={"gen_ai.request.temperature": temperature})

        runner, workers = await setup.prepare(act)
        async with anyio.create_task_group() as group:
            group.start_soon(workers.run)
            await runner.run_group(Prompt("g0", 0, 1))
            said = r"first step .*: 8 \(other_sampling\): the agent asks for temperature="
            with pytest.raises(RunFailedError, match=f"{said}{temperature}. It is trained at .*=1"):
                await runner.run_group(Prompt("g1", 1, 1))
            group.cancel_scope.cancel()
        assert len(workers.done) == 8, "none is tried again"
        metrics = runner.take_metrics("train")
        assert metrics["agl/rollouts_other_sampling"] == metrics["agl/rollouts_dropped"] == 8

    async def test_the_first_step_goes_on_if_another_group_is_usable(self, setup: Setup):
        def act(attempted: Any, number: int) -> Outcome:
            greedy = {"gen_ai.request.temperature": 0} if attempted.input == TASKS[0] else {}
            return Outcome(0.5, asked=greedy)

        prompts = [Prompt(f"g{place}", index, 1) for place, index in enumerate([0, 1, 0, 0])]
        runner, _ = await setup.feed(act, *prompts)
        assert runner.take_metrics("train")["agl/groups_dropped"] == 3

    async def test_what_the_proxy_adds_counts_as_asked_for(self, setup: Setup):
        added = {semconv.REQUEST_DEFAULTS: '{"top_p": 0.9}'}
        runner, _ = await setup.feed(lambda a, n: Outcome(0.5, asked=added), Prompt("g0", 0, 3))
        assert runner.take_metrics("train")["agl/rollouts_other_sampling"] == 4
        neutral = {"gen_ai.request.temperature": 1, "gen_ai.request.top_k": -1}
        runner, _ = await setup.feed(lambda a, n: Outcome(0.5, asked=neutral), Prompt("g1", 0, 3))
        assert runner.take_metrics("train")["agl/rollouts_dropped"] == 0

    async def test_what_is_open_can_be_cancelled(self, setup: Setup):
        runner, _ = await setup.prepare(lambda a, n: Outcome(0.5))
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run_group, Prompt("g0", 0, 1))
            with anyio.fail_after(10):
                while (await setup.store.query_rollouts()).total < 4:
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        await runner.cancel()
        statuses = {rollout.status for rollout in await setup.store.query_rollouts()}
        assert statuses == {"cancelled"}


class TestCredit:
    async def test_by_default_verl_computes_the_advantages(self, setup: Setup):
        runner, _ = await setup.feed(lambda a, n: Outcome(reward=0.5))
        assert {row.advantages for row in setup.published.rows} == {None}
        assert "agl/credit_spread" not in runner.take_metrics("train")

    async def test_calls_have_their_own_advantages(self, setup: Setup):
        scripts = iter([((7, 8), 1.0), ((7, 9), 0.0), ((6, 8), 1.0), ((6, 9), 0.0)])

        def act(*_: Any) -> Outcome:
            answers, value = next(scripts)
            return Outcome(value, answers=answers)

        runner, _ = await setup.feed(act, credit="rtmc")
        # Q of an answer, less the mean reward of the others in that state.
        wanted = [1 / 6, 2 / 3, -1 / 6, -2 / 3, 1 / 6, 2 / 3, -1 / 6, -2 / 3]
        found = [row.advantages for row in setup.published.rows]
        assert found == [pytest.approx([value, value]) for value in wanted]
        assert runner.take_metrics("train")["agl/credit_spread"] == pytest.approx(0.5)

    async def test_rollouts_fork_and_every_branch_has_rows(self, setup: Setup):
        answers: dict[str, tuple[int, ...]] = {}
        values = iter([1.0, 0.0, 0.25, 0.5, 0.75, 0.0])

        def act(attempted: AttemptedRollout, _: int) -> Outcome:
            replay = attempted.config.replay
            before = answers[replay.rollout_id][: replay.until] if replay else ()
            name = attempted.rollout_id
            answers[name] = (*before, *(20 + len(answers) for _ in range(3 - len(before))))
            return Outcome(next(values), answers=answers[name])

        credit = {"type": "forked", "forks": 2, "samples": 2, "choose": "uniform"}
        runner, _ = await setup.feed(act, n=2, credit=credit)
        rollouts = list((await setup.store.query_rollouts()).items)
        forks = {one.rollout_id: one.config.replay for one in rollouts if one.config.replay}
        assert [one.rollout_id in forks for one in rollouts] == [False] * 2 + [True] * 4
        names = [one.rollout_id for one in rollouts]
        paths = [
            Path(
                value,
                [Turn(answers[name][:t], answers[name][t]) for t in range(3)],
                parent=names.index(forks[name].rollout_id) if name in forks else None,
                at=(forks[name].until or 0) if name in forks else 0,
            )
            for name, value in zip(names, [1.0, 0.0, 0.25, 0.5, 0.75, 0.0], strict=True)
        ]
        wanted = forked_advantages(paths, normalise=False)
        rows = setup.published.rows
        for session, path in enumerate(paths):
            own = [row for row in rows if row.session == session]
            assert [row.row.response_ids[0] for row in own] == list(answers[names[session]])[
                path.at :
            ]
            assert {row.reward for row in own} == {path.reward}
            for row, value in zip(own, wanted[session][path.at :], strict=True):
                assert row.advantages == pytest.approx([value, value])
        metrics = runner.take_metrics("train")
        assert (metrics["agl/rollouts"], metrics["agl/forks"], metrics["agl/forks_dropped"]) == (
            2,
            4,
            0,
        )
        assert metrics["agl/rows"] == len(rows) == sum(3 - path.at for path in paths)
        assert metrics["training/reward"] == 0.5
        assert metrics["agl/credit_spread"] > 0

    async def test_a_failed_fork_is_dropped_without_a_retry(self, setup: Setup):
        def act(attempted: AttemptedRollout, _: int) -> Outcome:
            return Outcome(1.0, status="failed" if attempted.config.replay else "succeeded")

        runner, workers = await setup.feed(act, n=2, credit="forked")
        metrics = runner.take_metrics("train")
        assert metrics["agl/forks"] == metrics["agl/forks_dropped"] == metrics["agl/forks_failed"]
        assert metrics["agl/forks"] == 2
        assert metrics["agl/rollouts_retried"] == metrics["agl/rollouts_failed"] == 0
        assert len(workers.done) == 4
        assert {row.session for row in setup.published.rows} == {0, 1}

    async def test_agents_have_their_own_rewards(self, setup: Setup):
        values = iter([(1.0, 0.0), (0.0, 0.5)])

        def act(*_: Any) -> Outcome:
            primary, solver = next(values)
            return Outcome(primary, numbers={"*": solver})

        await setup.feed(act, n=2, credit="agents")
        found = [row.advantages for row in setup.published.rows]
        assert found == [[-0.25, -0.25], [0.25, 0.25]]

    async def test_validation_does_not_fork(self, setup: Setup):
        prompt = Prompt("v0", 0, 3, validate=True)
        await setup.feed(lambda a, n: Outcome(1.0, calls=2), prompt, credit="forked")
        assert (await setup.store.query_rollouts()).total == 2
        assert {row.advantages for row in setup.published.rows} == {None}


class TestValidation:
    async def test_a_reward_counts_however_its_calls_were_sampled(self, setup: Setup):
        prompt, greedy = Prompt("v0", 0, 1, validate=True), {"gen_ai.request.temperature": 0}
        runner, _ = await setup.feed(lambda a, n: Outcome(0.5, asked=greedy), prompt)
        metrics = runner.take_metrics("val")
        assert (metrics["val/reward"], metrics["agl/val_rollouts_dropped"]) == (0.5, 0)

    async def test_failures_count_as_what_a_missing_reward_counts(self, setup: Setup):
        seen: list[str] = []

        def act(attempted: Any, number: int) -> Outcome:
            seen.append(attempted.rollout_id)
            bad = attempted.rollout_id == seen[0]
            return Outcome(1.0, calls=0 if bad else 1, status="failed" if bad else "succeeded")

        prompt = Prompt("v0", 0, 3, validate=True)
        runner, _ = await setup.feed(act, prompt, on_failed="drop")
        rows = sorted(setup.published.rows, key=lambda row: row.session)
        assert [row.session for row in rows] == [0, 1]
        assert sorted(row.reward for row in rows) == [0.0, 1.0]
        assert sum(any(row.row.mask) for row in rows) == 1
        metrics = runner.take_metrics("val")
        assert metrics["val/reward"] == 0.5
        assert metrics["val/n_rollouts"] == 2
        assert runner.take_metrics("train")["agl/rollouts"] == 0
