"""A proxy in a process of its own: what crosses to its parent, and what happens when one dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import psutil
import pytest

from agl_core import semconv
from agl_core.errors import LaunchError, StoreDataError
from agl_core.metrics import recording
from agl_core.types import AttemptedRollout
from agl_proxy_direct import DirectProxy, UpstreamSpec, own_process
from agl_proxy_direct.link import Link
from agl_scripted import Reply, ScriptedModels
from agl_serving import mint_token
from agl_store_memory import InMemoryLightningStore
from tests.core.metrics.held import Held
from tests.processes import running_below

CHAT: dict[str, Any] = {"model": "q", "messages": [{"role": "user", "content": "hi"}]}
WORKER = "agl_proxy_direct.worker"
SECRET = "the-secret-of-the-operator-of-this-proxy"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sockets are passed to the process")


async def call(url: str, key: str = "none") -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(url + "/chat/completions", json=CHAT) as reply,
    ):
        return reply.status, json.loads(await reply.text())


def url_of(proxy: DirectProxy, claim: AttemptedRollout) -> str:
    return proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id, "q").endpoint


def worker_of(pid: int) -> psutil.Process:
    """Return the only child of a process that is a proxy."""
    (worker,) = running_below(WORKER, pid)
    return worker


async def test_orders_reach_the_process_and_its_spans_the_store(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout, spans: Any
):
    proxy = await serve(backend(models, api_key="sk-of-the-backend"), launch_mode="mp")
    worker = worker_of(os.getpid())
    assert "sk-of-the-backend" not in " ".join(worker.cmdline())
    url = url_of(proxy, claim)
    proxy.set_model_version("7")
    assert (await call(url))[0] == 200
    (span,) = await spans()
    assert span.attributes[semconv.MODEL_VERSION] == "7"
    assert models.requests[-1].headers["authorization"] == "Bearer sk-of-the-backend"

    await proxy.pause()
    held = asyncio.ensure_future(call(url))
    done, _ = await asyncio.wait({held}, timeout=0.2)
    assert not done
    await proxy.resume()
    assert (await held)[0] == 200
    with ScriptedModels([Reply("the other")]) as other:
        proxy.update_model_list([backend(other)])
        assert (await call(url))[1]["choices"][0]["message"]["content"] == "the other"
    assert await proxy.drain(1) == 0
    await proxy.stop()
    assert not worker.is_running()
    with pytest.raises(LaunchError, match="does not run"):
        await proxy.flush()


async def test_metrics_and_log_of_the_process_are_the_parents(
    serve: Any,
    backend: Any,
    models: ScriptedModels,
    claim: AttemptedRollout,
    caplog: pytest.LogCaptureFixture,
):
    held = Held()
    with recording(held):
        proxy = await serve(backend(models), launch_mode="mp")
        _, answer = await call(url_of(proxy, claim))
        await call(proxy.base_url)
        await proxy.flush()
    assert held.values["agl.proxy.total", "q", "200"] == [1, 1]
    tokens = answer["usage"]["prompt_tokens"]
    assert held.values["agl.proxy.tokens", "q", "prompt"] == [tokens] * 2
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any("calls without a rollout in their URL" in warning for warning in warnings)


async def test_a_process_that_is_killed_is_started_again(
    serve: Any,
    backend: Any,
    models: ScriptedModels,
    claim: AttemptedRollout,
    spans: Any,
    caplog: pytest.LogCaptureFixture,
):
    proxy = await serve(backend(models), launch_mode="mp", auth_token=SECRET)
    proxy.set_model_version("3", "q")
    url, ids = url_of(proxy, claim), (claim.rollout_id, claim.attempt.attempt_id)
    key = proxy.api_key_for(*ids)
    assert SECRET not in " ".join(worker_of(os.getpid()).cmdline())
    assert (await call(url, key))[0] == 200
    models.script = [Reply("late", delay=5.0)]
    flying = asyncio.ensure_future(call(url, key))
    async with asyncio.timeout(10):
        while len(models.requests) < 2:
            await asyncio.sleep(0.005)  # the scripted server has no event to wait for
    worker = worker_of(os.getpid())
    worker.kill()
    with pytest.raises(aiohttp.ClientError):
        await flying
    await proxy.pause()  # waits for the new process
    await proxy.resume()
    assert proxy.is_running()
    assert worker_of(os.getpid()).pid != worker.pid
    models.script = [Reply("again")]
    assert (await call(url, key))[0] == 200
    first, second = await spans()
    assert [first.sequence_id, second.sequence_id] == [1, 3]
    assert second.attributes[semconv.MODEL_VERSION] == "3"
    assert "died (exit code -9); starting it again" in caplog.text
    wrong = mint_token("another-secret-of-another-operator", "admin", lifetime=60)
    assert (await call(url, wrong))[0] == 401


async def test_a_process_that_keeps_dying_ends_the_proxy(
    serve: Any, backend: Any, models: ScriptedModels, caplog: pytest.LogCaptureFixture
):
    proxy = await serve(backend(models), launch_mode="mp")
    for _ in range(3):
        worker_of(os.getpid()).kill()
        await proxy.pause()
        await proxy.resume()
    await proxy.pause()
    models.script = [Reply("late", delay=20.0)]
    await proxy.resume()
    flying = asyncio.ensure_future(call(proxy.base_url))
    async with asyncio.timeout(10):
        while not models.requests:
            await asyncio.sleep(0.005)  # the scripted server has no event to wait for
    draining = asyncio.ensure_future(proxy.drain(60))
    await asyncio.wait({draining}, timeout=0.1)
    worker_of(os.getpid()).kill()
    with pytest.raises(LaunchError, match="died 4 times"):
        await asyncio.wait_for(draining, 20)
    with pytest.raises(aiohttp.ClientError):
        await flying
    models.script = [Reply("again")]
    assert not proxy.is_running()
    assert "died 4 times in a minute" in caplog.text
    await proxy.start()
    assert (await call(proxy.base_url))[0] == 200


async def test_a_process_that_cannot_start_is_an_error(
    store: InMemoryLightningStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "only_in_this_process", ModuleType("only_in_this_process"))

    def connect() -> Any:
        raise AssertionError("not called")

    proxy = DirectProxy(store=store, model_list=[], launch_mode="mp")
    proxy.upstream_spec = UpstreamSpec(connect=connect)
    with pytest.raises(LaunchError, match="local object"):
        await proxy.start()
    connect.__module__, connect.__qualname__ = "only_in_this_process", "connect"
    monkeypatch.setattr("only_in_this_process.connect", connect, raising=False)
    with pytest.raises(LaunchError, match="No module named 'only_in_this_process'"):
        await proxy.start()
    assert not proxy.is_running()
    assert running_below(WORKER) == []


async def test_a_start_that_is_given_up_leaves_no_process(store: InMemoryLightningStore):
    proxy = DirectProxy(store=store, model_list=[], launch_mode="mp")
    starting = asyncio.ensure_future(proxy.start())
    async with asyncio.timeout(20):
        while not running_below(WORKER):
            await asyncio.sleep(0.005)  # a process that is started sends no event
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert running_below(WORKER) == []


async def test_an_order_that_a_silent_process_does_not_take_is_an_error(
    serve: Any, backend: Any, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
):
    proxy = await serve(backend(models), launch_mode="mp")
    monkeypatch.setattr(own_process, "_CALL_SECONDS", 0.2)
    worker = worker_of(os.getpid())
    worker.suspend()
    with pytest.raises(LaunchError, match=r"has not answered for 0\.2 s"):
        proxy.set_model_version("7")
    worker.resume()
    await proxy.stop()
    assert not worker.is_running()


async def test_the_process_ends_although_it_cannot_stop_in_order(
    serve: Any, backend: Any, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
):
    request = Link.request

    async def fail(link: Link, name: str, *arguments: Any) -> Any:
        if name == "stop":
            raise StoreDataError("a task of the process failed")
        return await request(link, name, *arguments)

    proxy = await serve(backend(models), launch_mode="mp")
    worker = worker_of(os.getpid())
    monkeypatch.setattr(Link, "request", fail)
    with pytest.raises(StoreDataError):
        await proxy.stop()
    assert not worker.is_running()


PROGRAM = """
import asyncio, os, signal, sys, time
from agl_core.execution import ThreadingEvent, supervise
from agl_store_memory import InMemoryLightningStore
from agl_proxy_direct import DirectProxy

async def main():
    params = {"model": "hosted_vllm/q", "api_base": sys.argv[1]}
    entry = {"model_name": "q", "litellm_params": params}
    async with asyncio.timeout(60):
        proxy = DirectProxy(store=InMemoryLightningStore(), model_list=[entry], launch_mode="mp")
        await proxy.start()
        if not os.fork():
            # A runner's process that outlives its parent, with copies of all its sockets.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            time.sleep(60)
            os._exit(0)
        print(proxy.base_url, flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            await proxy.stop()

asyncio.run(supervise(main, ThreadingEvent(), grace=30))  # loses no Ctrl+C
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_the_process_ends_with_its_parent(
    models: ScriptedModels, tmp_path: Path, number: signal.Signals
):
    if number == signal.SIGKILL and not hasattr(os, "pidfd_open"):
        pytest.skip("only Linux reports the death of a parent whose sockets a child holds")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    parent = subprocess.Popen(
        [sys.executable, str(program), models.base_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        ready, _, _ = await asyncio.to_thread(select.select, [parent.stdout], [], [], 30)
        assert ready
        url = parent.stdout.readline().decode().strip()
        worker = worker_of(parent.pid)
        assert (await call(url))[0] == 200
        if number == signal.SIGINT:
            os.killpg(parent.pid, number)  # as Ctrl+C in a terminal does
        else:
            parent.kill()
        psutil.wait_procs([worker], timeout=2 if number == signal.SIGKILL else 10)
        assert not worker.is_running()
        parent.wait(10)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()
