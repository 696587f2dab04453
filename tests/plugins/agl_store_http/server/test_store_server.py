"""The store server as a store: here, in forks, and as a pickled copy."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from typing import Any

import aiohttp
import pytest

from agl_core.errors import ConfigError, LaunchError
from agl_core.store import Interceptor, Next, StoreCall, intercept
from agl_serving import PythonServerLauncher, PythonServerLauncherArgs
from agl_store_http import (
    LightningStoreClient,
    LightningStoreServer,
    StoreApp,
    StoreAppOptions,
)
from agl_store_memory import InMemoryLightningStore


class LoopBound(InMemoryLightningStore):
    """Says that it is not thread-safe."""

    @property
    def capabilities(self) -> Any:
        return {**super().capabilities, "thread_safe": False}


class NotAsync(InMemoryLightningStore):
    @property
    def capabilities(self) -> Any:
        return {}


def enqueue_from(pickled: bytes, number: int) -> None:
    async def main() -> None:
        store = pickle.loads(pickled)
        await store.enqueue_rollout(number)
        await store.close()

    asyncio.run(main())


async def join(process: Any) -> None:
    await asyncio.to_thread(process.join, 30)
    assert process.exitcode == 0


@pytest.mark.parametrize("inner", [InMemoryLightningStore, LoopBound])
async def test_it_is_the_store_it_serves(inner):
    store = inner()
    server = LightningStoreServer(store, port=0)
    await server.start()
    assert server.is_running()
    assert server.capabilities.get("zero_copy") and server.capabilities.get("thread_safe")
    assert server.otlp_traces_endpoint() == f"{server.endpoint}/v1/traces"
    client = LightningStoreClient(server.endpoint)
    here = await server.enqueue_rollout("here")
    assert (await client.get_rollout_by_id(here.rollout_id)) == here
    waiting = asyncio.create_task(server.wait_for_rollouts(rollout_ids=[here.rollout_id]))
    await client.update_rollout(here.rollout_id, status="cancelled")
    assert [item.status for item in await asyncio.wait_for(waiting, 10)] == ["cancelled"]
    assert (await server.statistics()).get("name") == inner.__name__
    await client.close()
    await server.close()
    assert not server.is_running()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
async def test_other_processes_change_the_one_true_store(method):
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=0)
    await server.start()
    process = multiprocessing.get_context(method).Process(
        target=enqueue_from, args=(pickle.dumps(server), 7)
    )
    process.start()
    await join(process)
    assert [item.input for item in (await store.query_rollouts()).items] == [7]
    await server.stop()


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this platform has no fork"
)
async def test_a_fork_of_the_very_object_goes_over_http():
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=0)
    await server.start()

    def child() -> None:
        async def main() -> None:
            await server.enqueue_rollout("from the fork")
            with pytest.raises(LaunchError, match="only the process"):
                await server.start()
            assert not server.is_running()
            await server.close()

        asyncio.run(main())

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    await join(process)
    assert [item.input for item in (await store.query_rollouts()).items] == ["from the fork"]
    assert server.is_running()
    await server.stop()


class Counted(Interceptor):
    """Counts the calls in this process."""

    watches = ("enqueue_rollout", "enqueue_many_rollouts")

    def __init__(self) -> None:
        self.calls = 0

    async def around(self, call: StoreCall, next: Next) -> Any:
        self.calls += 1
        return await next(call)


async def test_a_server_with_a_longer_list_is_the_same_server():
    served, above = Counted(), Counted()
    server = LightningStoreServer(intercept(InMemoryLightningStore(), served), port=0)
    await server.start()
    watched = intercept(server, above)
    assert isinstance(watched, LightningStoreServer)
    assert watched.endpoint == server.endpoint
    assert watched.is_running()
    await watched.enqueue_rollout("here")
    assert (served.calls, above.calls) == (1, 1)
    elsewhere = pickle.loads(pickle.dumps(watched))
    assert isinstance(elsewhere, LightningStoreServer)
    await elsewhere.enqueue_rollout("over HTTP")
    assert (served.calls, above.calls) == (2, 1), "the server has its own list"
    assert (await server.statistics()).get("total_rollouts") == 2
    await elsewhere.close()
    await watched.close()
    assert not server.is_running()


async def test_a_copy_can_neither_start_nor_stop():
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    copy = pickle.loads(pickle.dumps(server))
    assert copy.endpoint == server.endpoint
    for action in (copy.start, copy.stop, copy.run_forever):
        with pytest.raises(LaunchError, match="only the process"):
            await action()
    assert (await copy.statistics())["total_rollouts"] == 0
    await copy.close()
    assert server.is_running()
    await server.stop()


async def test_auth_travels_with_copies(monkeypatch):
    monkeypatch.setenv("AGL_AUTH_TOKEN", "a secret of sixteen or more")
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    monkeypatch.delenv("AGL_AUTH_TOKEN")
    copy = pickle.loads(pickle.dumps(server))
    assert (await copy.statistics())["total_rollouts"] == 0
    stranger = LightningStoreClient(server.endpoint, retry_delays=())
    with pytest.raises(PermissionError, match="needs a token"):
        await stranger.statistics()
    await stranger.close()
    await copy.close()
    await server.stop()


async def test_processes_serve_a_store_that_can_be_shared():
    """The shared store here is a client: what it reaches is one store for all workers."""
    store = InMemoryLightningStore()
    inner = PythonServerLauncher(StoreApp(store), PythonServerLauncherArgs(launch_mode="thread"))
    await inner.start()
    shared = LightningStoreClient(inner.endpoint)
    server = LightningStoreServer(shared, port=0, launch_mode="mp", n_workers=2)
    await server.start()
    client = LightningStoreClient(server.endpoint)
    await asyncio.gather(*(client.enqueue_rollout(number) for number in range(20)))
    assert (await store.statistics()).get("total_rollouts") == 20
    assert server.store is shared
    await client.close()
    await server.stop()
    await shared.close()
    await inner.stop()


class Waiting(InMemoryLightningStore):
    """Lets other calls go on while it reads spans, as a database does."""

    async def query_spans(self, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return await super().query_spans(*args, **options)

    async def query_encoded_spans(self, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return await super().query_encoded_spans(*args, **options)


async def test_pages_work_on_a_server_that_was_started_again():
    store = Waiting()
    server = LightningStoreServer(store, port=0)
    for _ in range(2):
        ended: list[str] = []
        for number in range(40):
            started = await store.start_rollout(number)
            ended.append(started.rollout_id)
            await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        await server.start()
        url = f"{server.endpoint}/v1/agl"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/training") as answer:
                assert answer.status == 200
            asked = {"rollout_ids": ended}
            async with session.post(f"{url}/rollouts/summaries", json=asked) as answer:
                assert answer.status == 200
        await server.stop()


async def test_run_forever_serves_until_cancelled():
    server = LightningStoreServer(InMemoryLightningStore(), port=0, launch_mode="asyncio")
    running = asyncio.create_task(server.run_forever())
    while not server.is_running():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not server.is_running()


def test_what_cannot_be_served_is_refused():
    memory = InMemoryLightningStore()
    with pytest.raises(ConfigError, match="zero_copy"):
        LightningStoreServer(memory, launch_mode="mp")
    with pytest.raises(ConfigError, match="async_safe"):
        LightningStoreServer(NotAsync())
    with pytest.raises(ConfigError, match="host and port"):
        LightningStoreServer(memory, port=2, launcher_args=PythonServerLauncherArgs(port=1))
    with pytest.raises(ConfigError, match="zero_copy"):
        LightningStoreServer(memory, launcher_args=PythonServerLauncherArgs(launch_mode="mp"))
    thread = PythonServerLauncherArgs(launch_mode="thread")
    with pytest.raises(ConfigError, match="launch_mode"):
        LightningStoreServer(memory, launch_mode="asyncio", launcher_args=thread)


@pytest.mark.parametrize(
    ("host", "names", "answers"),
    [
        ("127.0.0.1", (), {"store:4747": 421, "localhost": 200}),
        ("0.0.0.0", (), {"store:4747": 200, "agl.svc.cluster.local": 200}),
        ("0.0.0.0", ("store",), {"store:4747": 200, "other": 421}),
    ],
)
async def test_a_server_on_a_network_answers_to_any_host_name(host, names, answers):
    server = LightningStoreServer(
        InMemoryLightningStore(thread_safe=True),
        host=host,
        port=0,
        insecure=True,
        options=StoreAppOptions(allowed_hosts=names),
    )
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            for name, status in answers.items():
                url = f"{server.endpoint}/v1/agl/health"
                async with session.get(url, headers={"Host": name}) as answer:
                    assert answer.status == status, name
    finally:
        await server.stop()


async def test_launcher_args_may_hold_the_address():
    args = PythonServerLauncherArgs(host="127.0.0.1", port=0, launch_mode="thread")
    server = LightningStoreServer(InMemoryLightningStore(), launcher_args=args)
    await server.start()
    try:
        assert server.endpoint.startswith("http://127.0.0.1:")
        assert not server.endpoint.endswith(":4747")
    finally:
        await server.stop()


def test_networks_are_let_in_on_purpose_only():
    memory = InMemoryLightningStore()
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        with pytest.raises(ConfigError, match="--auth-token"):
            LightningStoreServer(memory, host=host)
        LightningStoreServer(memory, host=host, insecure=True)
        LightningStoreServer(memory, host=host, auth_token="0123456789abcdef")
    for host in (None, "127.0.0.1", "localhost", "::1"):
        LightningStoreServer(memory, host=host)
