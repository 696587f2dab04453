"""Servers without a process: their restarts, their models, and the proxy's entries for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import anyio
import pytest

from agl_algo_grpo import GRPO, GRPOConfig
from agl_algo_grpo.serving import Backend, Serving
from agl_core.agent import rollout
from agl_core.algorithm import RunContext
from agl_core.errors import LLMServerError
from agl_core.llm_server import LLMServer
from agl_core.trainer import Trainer
from agl_proxy_direct import DirectProxy
from agl_store_memory import InMemoryLightningStore


class Fragile(LLMServer):
    """A server without a process, which dies during some of its starts."""

    def __init__(self, deaths: Collection[int]) -> None:
        self.deaths = deaths
        self.starts = 0
        self.alive = False
        self.weights: list[Path] = []

    @property
    def model(self) -> str:
        return "m"

    @property
    def model_version(self) -> str:
        return "0"

    @property
    def base_url(self) -> str:
        return "http://127.0.0.1:1/v1"

    async def start(self) -> None:
        self.starts += 1
        if self.starts in self.deaths:
            raise LLMServerError("out of memory")
        self.alive = True

    async def stop(self) -> None:
        self.alive = False

    def is_running(self) -> bool:
        return self.alive

    async def update_weights(self, path: str | Path, *, version: str) -> None:
        self.weights.append(Path(path))


def serving_of(server: Fragile, **options: Any) -> Serving:
    config = GRPOConfig(model="x", max_server_restarts=2, **options)
    proxy = DirectProxy(store=InMemoryLightningStore(), launch_mode="asyncio")
    return Serving([Backend(server, ["main_llm"])], proxy, config)


async def test_a_server_that_dies_while_it_is_restarted_is_restarted_again():
    server = Fragile(deaths={2})
    serving = serving_of(server)
    async with serving.running():
        await serving.publish({"main_llm": Path("w")}, "step-1")
        server.alive = False
        await serving.ensure()
        assert server.alive
        assert (server.starts, serving.restarts) == (3, 2)
        assert server.weights == [Path("w")] * 2


async def test_its_restarts_are_limited():
    server = Fragile(deaths={2, 3, 4})
    serving = serving_of(server)
    async with serving.running():
        server.alive = False
        with pytest.raises(LLMServerError, match="restarted: out of memory, after 2 restarts"):
            await serving.ensure()
        assert server.starts == 3


@pytest.mark.parametrize("ran_before", [False, True])
async def test_only_what_it_started_is_stopped(ran_before: bool):
    server = Fragile(())
    serving = serving_of(server)
    proxy = serving._proxy
    if ran_before:
        await server.start()
        await proxy.start()
    async with serving.running():
        assert server.alive
        assert proxy.is_running()
    assert server.alive == proxy.is_running() == ran_before
    await proxy.stop()


class Tied(Fragile):
    """A server that takes no whole model."""

    checked = 0

    async def check(self) -> None:
        self.checked += 1

    def check_updates(self, path: str | Path) -> None:
        raise LLMServerError(f"{path} ties its embeddings")


async def test_a_check_refuses_a_model_that_the_server_will_not_take(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    server = Tied(())
    with pytest.raises(LLMServerError, match="ties its embeddings"):
        await GRPO(model=str(tmp_path), server=server).check()
    await GRPO(model="not/here/yet", server=server).check()
    assert (server.checked, server.starts) == (2, 0)


def test_a_run_refuses_it_before_the_first_rollout(taught: Path, tmp_path: Path):
    server, store = Tied(()), InMemoryLightningStore()
    algorithm = GRPO(model=taught, output_dir=str(tmp_path), server=server)
    trainer = Trainer(algorithm=algorithm, adapter="trajectory", strategy="shm", store=store)

    @rollout
    def agent(task: int) -> float:
        return 1.0

    with pytest.raises(LLMServerError, match=f"{taught} ties its embeddings"):
        trainer.fit(agent, list(range(8)))
    assert server.starts == 0
    assert not asyncio.run(store.query_rollouts()).total


class Adapting(Fragile):
    """A server that is told of adapters before its start."""

    def __init__(self) -> None:
        super().__init__(())
        self.expected: list[tuple[int, int]] = []

    def expect_adapters(self, *, rank: int, count: int = 1) -> None:
        assert not self.alive
        self.expected.append((rank, count))


async def test_a_server_is_prepared_for_the_adapters_of_its_policies():
    lora: Any = {"r": 32}
    own, shared, whole, trainers = (Adapting() for _ in range(4))
    GRPO(model="x", lora=lora, server=own).backends({"main_llm": Path("x")})
    both = {"a": {"model": "x", "lora": {"r": 8}}, "b": {"model": "x", "lora": lora}}
    GRPO(model=both, server=shared).backends({"a": Path("x"), "b": Path("x")})
    GRPO(model="x", server=whole).backends({"main_llm": Path("x")})
    GRPO(model="x", lora=lora).set_context(RunContext(llm_server=trainers))
    found = [server.expected for server in (own, shared, whole, trainers)]
    assert found == [[(32, 1)], [(32, 2)], [], [(32, 1)]]


class Choosy(Fragile):
    """A server whose entry has sampling parameters of the user's."""

    def model_list(self) -> list[dict[str, Any]]:
        (entry,) = super().model_list()
        return [{**entry, "litellm_params": {**entry["litellm_params"], "top_k": 20}}]


async def test_the_models_generation_config_is_neutralised_under_the_users_values():
    judge = {
        "model_name": "judge",
        "litellm_params": {"model": "hosted_vllm/j", "api_base": "http://127.0.0.1:1/v1"},
    }
    neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    for server, own in ((Fragile(()), {}), (Choosy(()), {"top_k": 20})):
        proxy = DirectProxy(
            store=InMemoryLightningStore(), launch_mode="asyncio", model_list=[judge]
        )
        config = GRPOConfig(model="x", temperature=0.7, max_tokens=9)
        async with Serving([Backend(server, ["main_llm"])], proxy, config).running():
            trained, other = proxy.get_model_list()
        (given,) = Fragile(()).model_list()
        expected = {**neutral, "temperature": 0.7, "max_tokens": 9, **own}
        assert trained["litellm_params"] == {**given["litellm_params"], **expected}
        assert other == judge, "it is not in training"


async def test_no_call_flows_between_the_drain_and_the_new_weights(
    monkeypatch: pytest.MonkeyPatch,
):
    """A restart that began before the publication ends with the proxy open."""
    server = Fragile(())
    serving = serving_of(server)
    is_open = True
    while_loading: list[bool] = []
    restarting, drained, go_on = anyio.Event(), anyio.Event(), anyio.Event()

    async def stop() -> None:
        if not restarting.is_set():
            restarting.set()
            await go_on.wait()
        server.alive = False

    async def pause(*_: Any, **__: Any) -> int:
        nonlocal is_open
        is_open = False
        return 0

    async def drain(*_: Any, **__: Any) -> int:
        drained.set()
        return await pause()

    async def resume(*_: Any) -> None:
        nonlocal is_open
        is_open = True

    async def load(*_: Any, **__: Any) -> None:
        while_loading.append(is_open)

    async with serving.running():
        for name, method in {"pause": pause, "drain": drain, "resume": resume}.items():
            monkeypatch.setattr(serving._proxy, name, method)
        monkeypatch.setattr(server, "stop", stop)
        monkeypatch.setattr(server, "update_weights", load)
        async with anyio.create_task_group() as group:
            server.alive = False
            group.start_soon(serving.ensure)
            await restarting.wait()
            group.start_soon(serving.publish, {"main_llm": Path("w")}, "step-1")
            await anyio.wait_all_tasks_blocked()
            go_on.set()
        assert drained.is_set()
    assert while_loading == [False]
    assert is_open


async def test_a_server_that_was_restarted_during_its_check_is_not_restarted_again(
    monkeypatch: pytest.MonkeyPatch,
):
    server = Fragile(())
    serving = serving_of(server)

    async def check(_: LLMServer) -> str:
        server.alive = False
        await serving.ensure()  # as a collection of failed rollouts does meanwhile
        return "does not reply"

    async with serving.running():
        monkeypatch.setattr(serving, "_check_health", check)
        await serving._check_and_restart(serving._backends[0])
        assert (serving.restarts, server.starts) == (1, 2)

        async def still_hangs(_: LLMServer) -> str:
            return "hangs"

        monkeypatch.setattr(serving, "_check_health", still_hangs)
        await serving._check_and_restart(serving._backends[0])
        assert (serving.restarts, server.starts) == (2, 3)


async def test_a_server_is_stopped_also_if_the_proxy_and_another_one_do_not_stop(
    monkeypatch: pytest.MonkeyPatch,
):
    class Named(Fragile):
        def __init__(self, name: str) -> None:
            super().__init__(())
            self.name = name

        @property
        def model(self) -> str:
            return self.name

    servers = [Named("a"), Named("b")]
    policies: dict[str, Any] = {"a": "x", "b": "y"}
    proxy = DirectProxy(store=InMemoryLightningStore(), launch_mode="asyncio")
    serving = Serving([Backend(s, [s.name]) for s in servers], proxy, GRPOConfig(model=policies))
    stop_proxy = proxy.stop

    async def of_proxy() -> None:
        await stop_proxy()
        raise RuntimeError("the proxy does not stop")

    async def of_server() -> None:
        raise LLMServerError("it does not stop")

    monkeypatch.setattr(proxy, "stop", of_proxy)
    monkeypatch.setattr(servers[0], "stop", of_server)
    with pytest.raises(RuntimeError, match="the proxy does not stop"):
        async with serving.running():
            assert all(server.alive for server in servers)
    assert not servers[1].alive


async def test_the_time_of_calls_at_a_publication_is_an_option(monkeypatch: pytest.MonkeyPatch):
    serving = serving_of(Fragile(()), drain_timeout=7.0)
    waits: list[float] = []

    async def drain(deadline: float, *, abort: bool) -> int:
        waits.append(deadline)
        return 0

    async with serving.running():
        monkeypatch.setattr(serving._proxy, "drain", drain)
        await serving.publish({}, "step-1")
    assert waits == [7.0]
