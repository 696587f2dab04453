"""The trainer: the components it builds, and runs in one process."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from agl_adapters import TracerTraceToTriplet
from agl_algorithm_kit import Baseline, run_batch
from agl_core.adapter import Adapter
from agl_core.agent import LitAgent, rollout
from agl_core.algorithm import Algorithm, FastAlgorithm, algo
from agl_core.errors import (
    AgentSignatureError,
    ComponentTypeError,
    ConfigError,
    InvalidArgumentError,
    PluginNotFoundError,
    RunFailedError,
)
from agl_core.plugins import add_listener, hookimpl, remove_listener
from agl_core.runner import Hook
from agl_core.store import LightningStore
from agl_core.trainer import Trainer
from agl_core.types import NamedResources, PromptTemplate, ProxyLLM
from agl_exec_shm import SharedMemoryExecutionStrategy
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_testing.ports import held_port
from agl_tracer_dummy import DummyTracer
from agl_tracer_otel import OtelTracer


@rollout
def parrot(task: Any, prompt_template: PromptTemplate) -> float:
    return float(len(prompt_template.format(task=task)))


PROMPT = PromptTemplate(template="{task}!", engine="f-string")


def trainer(**options: Any) -> Trainer:
    options.setdefault("strategy", {"type": "shm", "graceful_delay": 0.2, "join_timeout": 3.0})
    options.setdefault("initial_resources", {"prompt": PROMPT})
    return Trainer(**options)


class Scores(FastAlgorithm):
    """Runs its datasets as batches and keeps the rewards."""

    def __init__(self) -> None:
        self.rewards: list[float] = []

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        for mode, dataset in (("train", train_dataset), ("val", val_dataset)):
            if dataset is not None:
                batch = await run_batch(
                    self.get_store(),
                    dataset,
                    resources=self.get_initial_resources(),
                    mode=mode,  # pyright: ignore[reportArgumentType]
                    timeout=30,
                )
                self.rewards += batch.rewards()


# -- running -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_runners", [1, 3])
def test_fit(n_runners: int) -> None:
    scores = Scores()
    run = trainer(algorithm=scores, n_runners=n_runners)
    run.fit(parrot, ["a", "bb"], val_dataset=["ccc"])
    assert scores.rewards == [2.0, 3.0, 4.0]
    rollouts = asyncio.run(run.store.query_rollouts()).items
    assert [r.status for r in rollouts] == ["succeeded"] * 3
    assert [r.mode for r in rollouts] == ["train", "train", "val"]
    assert scores.get_trainer() is run
    assert scores.context.strategy is run.strategy
    assert isinstance(scores.get_adapter(), TracerTraceToTriplet)
    assert not run.interrupted


def test_a_trainer_runs_twice() -> None:
    scores = Scores()
    run = trainer(algorithm=scores, n_runners=2)
    run.fit(parrot, ["a"])
    run.fit(parrot, ["bb"])
    assert scores.rewards == [2.0, 3.0]


def test_runners_work_at_the_same_time() -> None:
    together = threading.Barrier(4)

    @rollout
    def meet(task: Any, prompt_template: PromptTemplate) -> float:
        together.wait(20)
        return 1.0

    scores = Scores()
    trainer(algorithm=scores, n_runners=4).fit(meet, [0, 1, 2, 3])
    assert scores.rewards == [1.0] * 4


@pytest.mark.parametrize("declared", [True, False])
def test_n_runners_is_the_number_of_rollouts_at_a_time(
    declared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    running, most = 0, 0

    @rollout(concurrent=declared)
    async def agent(task: Any) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return 1.0

    with caplog.at_level("INFO", logger="agl_core.trainer"):
        trainer(algorithm=Scores(), n_runners=1).fit(agent, list(range(12)))
    if declared:
        assert 1 < most <= 64
        assert "since the agent is concurrent" in caplog.text
    else:
        assert most == 1
        assert "1 runners, 1 rollouts at a time: one per runner" in caplog.text


def test_dev_runs_an_agent_that_asks_for_no_resource() -> None:
    done: list[str] = []

    @rollout
    def agent(task: str) -> float:
        done.append(task)
        return 1.0

    store = InMemoryLightningStore()
    Trainer(strategy="shm", store=store).dev(agent, ["a", "b"])
    assert sorted(done) == ["a", "b"]
    assert {one.status for one in asyncio.run(store.query_rollouts())} == {"succeeded"}


@pytest.mark.parametrize("how", ["fit", "dev", "evaluate"])
async def test_runs_inside_a_running_loop(how: str) -> None:
    """As in a notebook, each of whose cells runs in an event loop."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    done: list[str] = []

    @rollout
    def agent(task: str, prompt_template: PromptTemplate) -> float:
        done.append(task)
        return 1.0

    run = trainer(algorithm=Scores() if how == "fit" else None, n_runners=2)
    getattr(run, how)(agent, ["a", "b"])
    assert sorted(done) == ["a", "b"]
    assert asyncio.get_running_loop() is loop
    assert asyncio.current_task() is task
    await asyncio.sleep(0)


def test_a_blocking_agent_does_not_stop_other_runners() -> None:
    release = threading.Event()

    @rollout
    async def sometimes_blocks(task: Any, prompt_template: PromptTemplate) -> float:
        if task == "block":
            release.wait(30)  # in an async agent: blocks its whole loop
        return 1.0

    @algo
    async def watch(store: LightningStore, initial_resources: Any) -> None:
        await store.add_resources(initial_resources)
        await store.enqueue_rollout("block")
        others = await run_batch(store, list(range(20)), timeout=20)
        assert others.statuses() == {"succeeded": 20}
        release.set()

    trainer(algorithm=watch, n_runners=2, concurrency=1).fit(sometimes_blocks)
    assert release.is_set()


def test_crashing_agents_fail_their_attempts_only() -> None:
    @rollout
    def flaky(task: Any, prompt_template: PromptTemplate) -> float:
        if task == "exit":
            raise SystemExit(1)
        if task == "error":
            raise ValueError("no")
        return 1.0

    seen: list[dict[str, int]] = []

    @algo
    async def watch(store: LightningStore, initial_resources: Any) -> None:
        batch = await run_batch(
            store, ["exit", "fine", "error", "fine"], resources=initial_resources, timeout=20
        )
        seen.append(batch.statuses())

    trainer(algorithm=watch, n_runners=2).fit(flaky)
    assert seen == [{"failed": 2, "succeeded": 2}]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([0, 0, 0], "3 of 3 failed: ZeroDivisionError division by zero"),
        ([0, 0, "x"], "3 of 3 failed: 2 times ZeroDivisionError .*, and 1 other cause"),
    ],
)
def test_a_run_in_which_nothing_succeeded_is_a_failure(tasks: list[Any], message: str) -> None:
    @rollout
    def divide(task: Any, prompt_template: PromptTemplate) -> float:
        return 1 / task

    @algo
    async def once(store: LightningStore, initial_resources: Any) -> None:
        await run_batch(store, tasks, resources=initial_resources, timeout=20)

    run = trainer(algorithm=once)
    with pytest.raises(RunFailedError, match=f"^{message}$"):
        run.fit(divide)
    tasks[:] = [0, 1]  # one success; the failures of earlier runs do not count
    run.fit(divide)
    tasks[:] = []
    run.fit(divide)


def test_failures_are_those_of_this_run_by_the_clock_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = SimpleNamespace(time=lambda: time.time() + 3600)
    monkeypatch.setattr("agl_core.trainer._trainer.time", ahead)

    @rollout
    def divide(task: Any, prompt_template: PromptTemplate) -> float:
        return 1 / task

    for run in (trainer().dev, trainer(algorithm="baseline").fit):
        with pytest.raises(RunFailedError, match=r"^2 of 2 failed"):
            run(divide, [0, 0])


def test_a_comparison_in_which_nothing_succeeded_is_a_failure() -> None:
    @rollout
    def divide(task: Any, prompt_template: PromptTemplate) -> float:
        return len(prompt_template.template) / task

    run = trainer()
    other: NamedResources = {"prompt": PromptTemplate(template="{task}", engine="f-string")}
    with pytest.raises(RunFailedError, match=r"^2 of 2 failed: ZeroDivisionError"):
        run.compare(divide, [0, 0], before=None, after=other)
    assert run.compare(divide, [0, 1], before=None, after=other).before.statuses()["failed"] == 1


def test_the_first_failure_of_a_task_group_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(error: Exception) -> None:
        raise error

    @algo
    async def search(store: LightningStore) -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            outer.create_task(fail(ConnectionError("the model is away")))
            inner.create_task(fail(PermissionError("no budget")))

    with pytest.raises(ConnectionError, match="the model is away"):
        trainer(algorithm=search).fit(parrot)
    assert "PermissionError: no budget" in caplog.text


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_exit_in_a_task_group_ends_the_run_as_an_exit(ending: BaseException) -> None:
    """A handler of SIGTERM may call ``sys.exit`` wherever the algorithm is."""

    @algo
    async def search(store: LightningStore) -> None:
        async with anyio.create_task_group(), anyio.create_task_group():
            raise ending

    run = trainer(algorithm=search)
    if isinstance(ending, SystemExit):
        with pytest.raises(SystemExit, match="3"):
            run.fit(parrot)
    else:
        run.fit(parrot)
        assert run.strategy.interrupted


def test_an_evaluation_in_which_nothing_succeeded_is_a_failure_with_its_outcome() -> None:
    @rollout
    def divide(task: Any, prompt_template: PromptTemplate) -> float:
        return 1 / task

    run = trainer()
    with pytest.raises(RunFailedError, match=r"^2 of 2 failed: ZeroDivisionError") as failed:
        run.evaluate(divide, [0, 0])
    assert failed.value.outcome.statuses() == {"failed": 2}
    # One success is enough; the failures of earlier evaluations do not count.
    assert run.evaluate(divide, [0, 2]).statuses() == {"failed": 1, "succeeded": 1}


@pytest.mark.parametrize("kind", ["sync", "async", "blocked loop"])
def test_hanging_agents_leave_no_attempt_open(kind: str) -> None:
    started, release = threading.Event(), threading.Event()

    @rollout
    def hang(task: Any, prompt_template: PromptTemplate) -> float:
        started.set()
        release.wait(60)
        return 1.0

    @rollout
    async def hang_async(task: Any, prompt_template: PromptTemplate) -> float:
        started.set()
        await asyncio.sleep(60)
        return 1.0

    @rollout
    async def hang_loop(task: Any, prompt_template: PromptTemplate) -> float:
        started.set()
        release.wait(60)
        return 1.0

    @algo
    async def start_and_leave(store: LightningStore, initial_resources: Any) -> None:
        await store.add_resources(initial_resources)
        await store.enqueue_rollout("task")
        await asyncio.to_thread(started.wait, 20)

    agent = {"sync": hang, "async": hang_async, "blocked loop": hang_loop}[kind]
    run = trainer(
        algorithm=start_and_leave,
        n_runners=2,
        runner=lambda: LitAgentRunner(OtelTracer(), cancel_grace=0.1),
    )
    before = time.monotonic()
    run.fit(agent)
    assert time.monotonic() - before < 15
    (only,) = asyncio.run(run.store.query_rollouts()).items
    assert only.status == "failed"
    attempt = asyncio.run(run.store.get_latest_attempt(only.rollout_id))
    release.set()
    assert attempt is not None
    assert attempt.status == "failed"
    assert attempt.metadata is not None
    assert attempt.metadata["error"]


def test_the_algorithms_error_comes_out() -> None:
    @algo
    async def broken(store: Any) -> None:
        raise LookupError("no idea")

    with pytest.raises(LookupError, match="no idea"):
        trainer(algorithm=broken, n_runners=2).fit(parrot)


def test_a_sync_algorithm_may_start_a_loop_of_its_own() -> None:
    rewards: list[float] = []

    @algo
    def search(store: LightningStore, train_dataset: Any, initial_resources: Any) -> None:
        batch = asyncio.run(run_batch(store, train_dataset, resources=initial_resources))
        rewards.extend(batch.rewards())

    trainer(algorithm=search, n_runners=2).fit(parrot, ["a", "bb"])
    assert rewards == [2.0, 3.0]


def test_a_sync_algorithms_error_comes_out() -> None:
    @algo
    def broken(store: Any) -> None:
        raise LookupError("no idea")

    with pytest.raises(LookupError, match="no idea"):
        trainer(algorithm=broken).fit(parrot)


@pytest.mark.parametrize("max_rollouts", [None, 1])
def test_without_an_algorithm_runners_serve_the_store_until_ctrl_c(
    max_rollouts: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(InMemoryLightningStore):
        async def add_resources(self, resources: Any) -> Any:
            await asyncio.sleep(0.2)  # the rollout waits in the queue: runners must wait, too
            return await super().add_resources(resources)

    store = Slow()
    served = threading.Event()

    class Served(Hook):
        async def on_rollout_end(self, **_: Any) -> None:
            served.set()

    def interrupt() -> None:
        assert served.wait(20)
        time.sleep(0.1)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    asyncio.run(store.enqueue_rollout("a"))
    run = trainer(store=store, hooks=Served(), max_rollouts=max_rollouts)
    threading.Thread(target=interrupt, daemon=True).start()
    run.fit(parrot, ["b"])
    assert run.interrupted
    assert "Nobody enqueues the dataset: give Trainer(algorithm=)" in caplog.text
    assert asyncio.run(store.query_rollouts())[0].status == "succeeded"


@pytest.mark.parametrize("hooks", [Hook, [Hook], 5])
def test_what_is_no_hook_is_named(hooks: Any) -> None:
    with pytest.raises(ConfigError, match=r"^hooks: .* is not a Hook; derive it from"):
        trainer(hooks=hooks)


def test_hooks_see_every_rollout_of_every_runner() -> None:
    calls: list[str] = []

    class Diary(Hook):
        async def on_rollout_start(self, **_: Any) -> None:
            calls.append("start")

        async def on_rollout_end(self, *, spans: Any, **_: Any) -> None:
            calls.append(f"end {len(spans)}")

    trainer(algorithm=Scores(), n_runners=2, hooks=[Diary()]).fit(parrot, ["a", "b", "c"])
    assert sorted(calls) == ["end 1"] * 3 + ["start"] * 3


def test_listeners_learn_of_runs() -> None:
    told: list[Any] = []

    class Listener:
        @hookimpl
        def run_started(self, run_id: str, mode: str, config: Any) -> None:
            told.append((mode, config["algorithm"], config["n_runners"], run_id))

        @hookimpl
        def run_finished(self, run_id: str, mode: str, error: Any) -> None:
            told.append((mode, type(error).__name__, run_id))

    @algo
    def broken() -> None:
        raise LookupError

    name = add_listener(Listener())
    try:
        trainer(algorithm=Scores(), n_runners=2).dev(parrot, ["a"])
        with pytest.raises(LookupError):
            trainer(algorithm=broken).fit(parrot)
    finally:
        remove_listener(name)
    (started, ended, started2, ended2) = told
    assert started[:3] == ("dev", "Scores", 2)
    assert ended == ("dev", "NoneType", started[3])
    assert ended2 == ("fit", "LookupError", started2[3])


def test_dev_defaults_to_the_baseline(caplog: pytest.LogCaptureFixture) -> None:
    run = trainer()
    with caplog.at_level("INFO", logger="agl_algorithm_kit"):
        run.dev(parrot, ["a"])
    assert "succeeded" in caplog.text
    assert asyncio.run(run.store.query_rollouts())[0].resources_id == "default"


def test_dev_takes_fast_algorithms_only() -> None:
    @algo
    async def slow(store: Any) -> None: ...

    with pytest.raises(TypeError, match="dev takes a FastAlgorithm"):
        trainer(algorithm=slow).dev(parrot, ["a"])


def test_evaluate() -> None:
    run = trainer(n_runners=2)
    outcome = run.evaluate(parrot, ["a", "bb"])
    assert outcome.rewards() == [2.0, 3.0]
    assert {o.rollout.mode for o in outcome} == {"test"}
    better = PromptTemplate(template="{task}???", engine="f-string")
    assert run.evaluate(parrot, ["a"], resources={"prompt": better}).rewards() == [4.0]
    assert run.evaluate(parrot, ["a"]).rewards() == [2.0]  # an evaluation changes nothing
    asyncio.run(run.store.add_resources({"prompt": better}))
    assert run.evaluate(parrot, ["a"]).rewards() == [4.0]  # the latest in the store
    with pytest.raises(ConfigError, match="needs tasks"):
        run.evaluate(parrot, [])


def test_a_finished_evaluation_is_not_called_interrupted() -> None:
    run = trainer()
    run.evaluate(parrot, ["a"], run="mine")
    with pytest.raises(ConfigError, match=r"^run: 'mine' is finished; give another name$"):
        run.evaluate(parrot, ["a"], run="mine")
    run.compare(parrot, ["a"], before=None, after=None, run="both")
    with pytest.raises(ConfigError, match=r"^run: 'both' is finished; give another name$"):
        run.compare(parrot, ["a"], before=None, after=None, run="both")


def test_evaluate_takes_an_edited_prompt_until_the_next_training() -> None:
    @algo
    async def longer(store: LightningStore, initial_resources: Any) -> None:
        await store.update_resources("v0", initial_resources)
        text = initial_resources["prompt"].template + "!"
        await store.update_resources("v1", {"prompt": PROMPT.model_copy(update={"template": text})})

    store = InMemoryLightningStore()

    def run_with(text: str) -> Trainer:
        prompt = PromptTemplate(template=text, engine="f-string")
        return trainer(algorithm=longer, store=store, initial_resources={"prompt": prompt})

    def reward_of(text: str) -> float:
        return run_with(text).evaluate(parrot, ["a"]).rewards()[0]

    run_with("{task}").fit(parrot)
    assert reward_of("{task}") == 2.0  # the trained prompt
    assert reward_of("{task}......") == 7.0  # the edited one
    assert reward_of("{task}......") == 7.0
    assert reward_of("{task}") == 2.0  # the edit is taken back
    run_with("{task}......").fit(parrot)
    assert reward_of("{task}......") == 8.0


def test_evaluate_says_that_the_proxy_of_a_stored_model_is_gone() -> None:
    store = InMemoryLightningStore()
    gone = pytest.raises(ConfigError, match=r"behind a proxy at http://127\.0\.0\.1:.* which ended")
    with held_port() as port:
        llm = ProxyLLM(endpoint=f"http://127.0.0.1:{port}", model="m")
        asyncio.run(store.update_resources("v1", {"main_llm": llm}))
        with gone:
            trainer(store=store).evaluate(parrot, ["a"], resources="v1")
    assert not asyncio.run(store.query_rollouts())


# -- composing -----------------------------------------------------------------------------------


def test_defaults() -> None:
    run = Trainer(strategy="shm")
    assert isinstance(run.tracer, OtelTracer)
    assert isinstance(run.adapter, TracerTraceToTriplet)
    assert isinstance(run.store, InMemoryLightningStore)
    assert isinstance(run.runner, LitAgentRunner)
    assert run.runner.tracer is run.tracer
    assert run.algorithm is None
    assert run.llm_proxy is None
    assert (run.n_runners, run.hooks) == (1, ())


def test_every_form_of_a_component(tmp_path: Path) -> None:
    file = tmp_path / "baseline.toml"
    file.write_text('type = "baseline"\nn_epochs = 3\n')
    made = [
        Trainer(strategy="shm", algorithm=spec).algorithm
        for spec in (
            Baseline(n_epochs=3),
            {"type": "baseline", "n_epochs": 3},
            {"type": "agl_algorithm_kit:Baseline", "n_epochs": 3},
            str(file),
            lambda: Baseline(n_epochs=3),
        )
    ]
    assert [a.n_epochs for a in made if isinstance(a, Baseline)] == [3] * 5
    assert isinstance(Trainer(strategy="shm", algorithm=Baseline).algorithm, Baseline)


def test_a_dict_without_a_type_means_the_default() -> None:
    run = Trainer(strategy="shm", adapter={"repair_hierarchy": False})
    assert isinstance(run.adapter, TracerTraceToTriplet)


def test_the_strategys_own_number_of_runners_wins() -> None:
    assert Trainer(strategy="shm", n_runners=3).strategy.n_runners == 3
    assert Trainer(strategy={"type": "shm", "n_runners": 4}, n_runners=8).n_runners == 4
    assert Trainer(strategy=SharedMemoryExecutionStrategy(5), n_runners=8).n_runners == 5


def test_the_runner_gets_its_limit_and_tracer() -> None:
    run = Trainer(strategy="shm", max_rollouts=7, concurrency=3, tracer=OtelTracer())
    assert isinstance(run.runner, LitAgentRunner)
    assert run.runner.max_rollouts == 7
    assert run.runner.concurrency == 3
    assert run.runner.tracer is run.tracer


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"store": "memry"}, PluginNotFoundError, "memory"),
        ({"algorithm": {"type": "baseline", "n_epoch": 2}}, ConfigError, "algorithm.n_epoch"),
        ({"algorithm": {"type": "baseline", "n_epochs": "x"}}, ConfigError, "algorithm.n_epochs"),
        ({"strategy": {"type": "shm", "n_runners": 0}}, ConfigError, "strategy.n_runners"),
        ({"adapter": Baseline()}, ConfigError, "adapter"),
        ({"algorithm": dict}, ComponentTypeError, "algorithm"),
        ({"n_runners": 0}, ConfigError, "n_runners: must be at least 1"),
        ({"hooks": ["no"]}, ConfigError, "hooks: 'no' is not a Hook"),
        ({"proxy": {"port": 1}, "llm_proxy": {"port": 1}}, ConfigError, "proxy"),
    ],
)
def test_bad_components(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        trainer(**options)


class NoAgent(LitAgent[Any]):
    pass


@pytest.mark.parametrize(
    ("agent", "datasets", "error", "message"),
    [
        (print, [[1]], ConfigError, "agent: .* decorate a function with @rollout"),
        (NoAgent(), [[1]], AgentSignatureError, "NoAgent"),
        (parrot, [5], ConfigError, "train_dataset: a int is not a dataset"),
        (parrot, [{1: 2}], ConfigError, "train_dataset: a dict is not a dataset"),
        (parrot, ["tasks"], ConfigError, "train_dataset: a str is not a dataset"),
    ],
)
def test_bad_input_to_fit(agent: Any, datasets: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        trainer(algorithm=Scores()).fit(agent, *datasets)


@pytest.mark.parametrize("old", ["n_workers", "max_tasks", "daemon", "triplet_exporter", "dev"])
def test_an_argument_has_one_name(old: str) -> None:
    """The old names are those of `agl_legacy.Trainer`."""
    with pytest.raises(TypeError, match=old):
        trainer(**{old: 1})


def test_custom_components_are_used_unchanged() -> None:
    class Mine(Adapter[Any, Any]):
        def adapt(self, source: Any) -> Any:
            return source

    class Own(Algorithm):
        pass

    adapter, algorithm, tracer = Mine(), Own(), DummyTracer()
    run = trainer(adapter=adapter, algorithm=algorithm, tracer=tracer)
    assert (run.adapter, run.algorithm, run.tracer) == (adapter, algorithm, tracer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_runners": "4"}, "n_runners: must be an integer, not '4'"),
        ({"n_runners": 1.5}, "n_runners: must be an integer, not 1.5"),
        ({"n_runners": 0}, "n_runners: must be at least 1, not 0"),
        ({"concurrency": 0}, "concurrency: must be at least 1, not 0"),
        ({"max_rollouts": "x"}, "max_rollouts: must be an integer, not 'x'"),
        ({"max_rollouts": -1}, "max_rollouts: must be at least 0, not -1"),
        ({"port": 99999}, "port: must be at most 65535, not 99999"),
        ({"port": True}, "port: must be an integer, not True"),
        ({"run": 3}, "run: must be a string, not 3"),
        ({"initial_resources": ["x"]}, "initial_resources: must be a dict of resources by name"),
        (
            {"initial_resources": {"p": "text"}},
            "initial_resources.p: is a text, not a resource; write PromptTemplate(template=",
        ),
        ({"initial_resources": {"p": 3}}, "initial_resources.p: a int is not a resource"),
        ({"runner": {"poll_interval": "soon"}}, "poll_interval: should be a valid number"),
        ({"runner": {"max_rollouts": "few"}}, "max_rollouts: should be a valid integer, not 'few'"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(options: Any, message: str) -> None:
    with pytest.raises((ConfigError, InvalidArgumentError)) as refused:
        Trainer(**options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
