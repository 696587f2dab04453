"""``Trainer()`` runs in processes if agl-exec-cs is installed, and in threads otherwise."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_core.agent import rollout
from agl_core.algorithm import algo
from agl_core.errors import ConfigError, PluginNotFoundError
from agl_core.plugins import Registry, build_component, get_registry, reset_registry
from agl_core.trainer import Trainer
from agl_exec_shm import SharedMemoryExecutionStrategy
from agl_train import read_train_file
from tests.tables import check_each


@pytest.fixture
def without_cs() -> Iterator[None]:
    """A process in which agl-exec-cs is not installed."""
    reset_registry(Registry(r for r in Registry.discover().records if r.dist != "agl-exec-cs"))
    yield
    reset_registry()


@pytest.fixture
def cs_disabled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "execution.cs")
    reset_registry()
    yield
    reset_registry()


@rollout
def agent(task: Any, llm: Any) -> float:
    return 1.0


@algo
async def nothing() -> None: ...


def advice(package: str) -> str:
    """Return how messages name a package here: by its folder in a source tree."""
    return get_registry().catalogue.how_to_install(package)


def fit_and_read_log(caplog: pytest.LogCaptureFixture, **options: Any) -> str:
    trainer = Trainer(algorithm=nothing, **options)
    with caplog.at_level(logging.INFO, logger="agl_core.trainer"):
        trainer.fit(agent)
    (line,) = [r.message for r in caplog.records if r.message.startswith("Execution strategy")]
    return line


def test_cs_is_the_default_where_it_is_installed(caplog: pytest.LogCaptureFixture):
    strategies = pytest.importorskip("agl_exec_cs")
    assert isinstance(Trainer().strategy, strategies.ClientServerExecutionStrategy)
    line = fit_and_read_log(caplog, port=0)
    assert line == "Execution strategy: cs, runners as processes"


@pytest.mark.usefixtures("without_cs")
def test_shm_is_the_default_elsewhere_and_the_log_says_what_to_install(
    caplog: pytest.LogCaptureFixture,
):
    trainer = Trainer(n_runners=2)
    assert isinstance(trainer.strategy, SharedMemoryExecutionStrategy)
    assert trainer.n_runners == 2
    assert fit_and_read_log(caplog) == (
        f"Execution strategy: shm, runners as threads ({advice('agl-exec-cs')} for processes)"
    )


@pytest.mark.usefixtures("cs_disabled")
def test_shm_is_the_default_if_cs_is_disabled(caplog: pytest.LogCaptureFixture):
    pytest.importorskip("agl_exec_cs")
    assert fit_and_read_log(caplog) == (
        "Execution strategy: shm, runners as threads (cs is disabled)"
    )


def test_a_given_strategy_is_named_without_a_reason(caplog: pytest.LogCaptureFixture):
    line = fit_and_read_log(caplog, strategy="shm")
    assert line == "Execution strategy: SharedMemoryExecutionStrategy"


@pytest.mark.usefixtures("without_cs")
def test_a_train_file_has_the_same_default(tmp_path: Path):
    tmp_path.joinpath("an_agent.py").write_text(
        "from agl_core.agent import rollout\n\n@rollout\ndef solve(task, llm): ...\n"
    )
    file = tmp_path / "train.toml"
    file.write_text('agent = "an_agent.py:solve"\n[strategy]\njoin_timeout = 3\n')
    plan = read_train_file(file, ["store=memory"])
    strategy = plan.build_trainer().strategy
    assert isinstance(strategy, SharedMemoryExecutionStrategy)
    assert strategy.join_timeout == 3
    file.write_text('agent = "an_agent.py:solve"\n')
    assert read_train_file(file, ["store=memory"]).describe()["strategy"] == "shm"


@pytest.mark.usefixtures("without_cs")
def test_options_of_cs_are_not_taken_by_shm():
    with pytest.raises(ConfigError, match=r"^strategy\.max_restarts: unknown option"):
        Trainer(strategy={"max_restarts": 1})


MISSING = [
    ("execution", "cs", "agl-exec-cs"),
    ("store", "http", "agl-store-http"),
    ("store", "sqlite", "agl-store-sqlite"),
    ("adapter", "trajectory", "agl-adapter-trajectory"),
    ("adapter", "triplet", "agl-adapters"),
    ("proxy", {"port": 0}, "agl-proxy-direct"),
    ("command", "store", "agl-store-http"),
    ("command", "doctor", "agl-doctor"),
    ("command", "train", "agl-train"),
    ("command", "eval", "agl-train"),
    ("command", "runner", "agl-exec-cs"),
    ("command", "algorithm", "agl-exec-cs"),
    ("command", "proxy", "agl-proxy-direct"),
    ("command", "export", "agl-export"),
    ("command", "replay", "agl-replay"),
    ("command", "trace", "agl-trace"),
]


class TestMissingPackages:
    """The error for a missing package of those that users install is one line with its command."""

    @pytest.fixture(autouse=True)
    def core_alone(self) -> Iterator[None]:
        records = Registry.discover().records
        needed = {"algorithm.baseline", "catalogue.agl", "execution.shm", "runner.agent"}
        needed |= {"store.memory", "tracer.otel"}
        reset_registry(Registry(r for r in records if r.key in needed))
        yield
        reset_registry()

    def test_it_is_named_by_the_error(self, capsys: pytest.CaptureFixture[str]):
        def check(kind: str, spec: Any, package: str) -> None:
            if kind == "command":
                from agl_cli_kit import main

                assert main([spec]) == 2
                said = capsys.readouterr().err
            else:
                with pytest.raises(PluginNotFoundError) as caught:
                    build_component(kind, spec, default="direct" if kind == "proxy" else None)
                said = str(caught.value)
            assert advice(package) in said
            assert "\n" not in said.strip()

        check_each(check, MISSING)

    def test_without_adapters_an_algorithm_that_reads_spans_says_what_to_install(self):
        @algo
        def search(train_dataset: Any, adapter: Any) -> None: ...

        with pytest.raises(PluginNotFoundError, match=f"{advice('agl-adapters')}$"):
            Trainer(algorithm=search, strategy="shm").fit(agent, [1])
        Trainer(strategy="shm").dev(rollout(lambda task: 1.0), [1])

    def test_the_trainer_says_the_same(self):
        cases: tuple[tuple[dict[str, Any], str], ...] = (
            ({"strategy": "cs"}, "agl-exec-cs"),
            ({"store": "http"}, "agl-store-http"),
            ({"llm_proxy": {"port": 0}}, "agl-proxy-direct"),
        )
        for options, package in cases:
            with pytest.raises(PluginNotFoundError, match=f"{advice(package)}$"):
                Trainer(**options)
