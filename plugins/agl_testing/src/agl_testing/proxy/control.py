"""Start, stop, and control of a running proxy."""

from __future__ import annotations

import asyncio
import pickle
import re
import socket
from collections.abc import Callable
from typing import Any, cast

import aiohttp
import pytest

from agl_core import semconv
from agl_core.errors import ConfigError, LaunchError
from agl_core.proxy import LLMProxy
from agl_core.types import ProxyLLM
from agl_scripted import Reply, ScriptedModels
from agl_testing.proxy.base import (
    ANSWER,
    ProxyTests,
    attempt_of,
    backend,
    chat,
    post,
    running,
    soon,
    spans_of,
)
from agl_testing.proxy.stores import TroubledStore

__all__ = ["ControlTests", "LifecycleTests"]


class LifecycleTests(ProxyTests):
    """A proxy is created, started, stopped and copied."""

    async def test_it_starts_stops_and_starts_again(self, proxy: LLMProxy):
        assert isinstance(proxy, LLMProxy)
        assert not proxy.is_running()
        for _ in range(2):
            await proxy.start()
            assert proxy.is_running()
            assert await chat(proxy.base_url) == ANSWER.text
            await proxy.stop()
            assert not proxy.is_running()

    async def test_it_listens_no_more_after_the_stop(self, proxy: LLMProxy):
        async with running(proxy):
            host, port = proxy.base_url.split("/")[2].split(":")
        with pytest.raises(OSError, match=r".+"), socket.create_connection((host, int(port)), 1):
            pass

    async def test_it_needs_a_store(
        self, make_proxy: Callable[..., LLMProxy], models: ScriptedModels
    ):
        with pytest.raises(ValueError, match="store"):
            await make_proxy(model_list=[backend(models)], store=None).start()

    async def test_a_pickled_copy_has_the_settings_and_does_not_run(
        self, make_proxy: Callable[..., LLMProxy], models: ScriptedModels
    ):
        copy = pickle.loads(pickle.dumps(make_proxy(model_list=[backend(models)], store=None)))
        assert not copy.is_running()
        assert copy.get_model_list() == [backend(models)]
        copy.set_store(TroubledStore())
        async with running(copy):
            assert await chat(copy.base_url) == ANSWER.text

    async def test_resources_lead_to_it(self, proxy: LLMProxy):
        async with running(proxy):
            resource = proxy.as_resource(sampling_parameters={"temperature": 0.1})
            assert isinstance(resource, ProxyLLM)
            assert resource.model == "m"
            assert resource.sampling_parameters == {"temperature": 0.1}
            baked = proxy.as_resource("ro-1", "at-1")
            assert not isinstance(baked, ProxyLLM)
            assert baked.endpoint == resource.get_base_url("ro-1", "at-1")
            assert "/rollout/ro-1/attempt/at-1" in baked.endpoint
            with pytest.raises(ValueError, match="both"):
                proxy.as_resource("ro-1")

    async def test_a_stopped_proxy_has_no_address(self, proxy: LLMProxy):
        with pytest.raises(LaunchError):
            _ = proxy.base_url

    async def test_a_running_proxy_is_not_started_again(self, proxy: LLMProxy):
        async with running(proxy):
            with pytest.raises(LaunchError):
                await proxy.start()
            assert proxy.is_running()
            assert await chat(proxy.base_url) == ANSWER.text

    async def test_a_restart_serves_again(self, proxy: LLMProxy):
        await proxy.restart()
        try:
            assert await chat(proxy.base_url) == ANSWER.text
            await proxy.restart()
            assert await chat(proxy.base_url) == ANSWER.text
        finally:
            await proxy.stop()

    async def test_spans_go_to_the_store_that_was_set_last(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        other = TroubledStore()
        async with running(proxy):
            assert proxy.get_store() is proxy_store
            first, llm = await attempt_of(proxy, proxy_store)
            await chat(llm.endpoint)
            proxy.set_store(other)
            assert proxy.get_store() is other
            second, llm = await attempt_of(proxy, other)
            await chat(llm.endpoint)
            await proxy.flush(second.rollout_id, second.attempt.attempt_id)
            assert len(await spans_of(other, second)) == 1
        assert len(await spans_of(proxy_store, first)) == 1

    async def test_a_stop_stores_the_calls_in_flight(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("late", delay=0.3)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            call = asyncio.ensure_future(chat(llm.endpoint))
            assert await soon(lambda: bool(models.requests))
        assert await call == "late"
        assert len(await spans_of(proxy_store, rollout)) == 1

    async def test_a_taken_port_is_refused(
        self, make_proxy: Callable[..., LLMProxy], models: ScriptedModels
    ):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            options = {"model_list": [backend(models)], "store": TroubledStore(), "port": port}
            proxy = make_proxy(**options)
            with pytest.raises(LaunchError):
                await proxy.start()
            assert not proxy.is_running()
        async with running(proxy):
            assert f":{port}/" in proxy.base_url
            assert await chat(proxy.base_url) == ANSWER.text

    async def test_the_address_is_that_of_an_openai_server(self, proxy: LLMProxy):
        async with running(proxy):
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", proxy.base_url)
            assert proxy.as_resource().endpoint == proxy.base_url

    async def test_a_stop_without_a_start_warns(
        self, proxy: LLMProxy, caplog: pytest.LogCaptureFixture
    ):
        await proxy.stop()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert not proxy.is_running()

    async def test_a_copy_of_a_running_proxy_does_not_run(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        async with running(proxy):
            proxy.set_model_version("step-1")
            copy = pickle.loads(pickle.dumps(proxy))
            assert proxy.is_running()
            assert not copy.is_running()
            with pytest.raises(LaunchError):
                _ = copy.base_url
        copy.set_store(proxy_store)
        async with running(copy):
            rollout, llm = await attempt_of(copy, proxy_store)
            assert await chat(llm.endpoint) == ANSWER.text
            (span,) = await spans_of(proxy_store, rollout)
        assert span.attributes[semconv.MODEL_VERSION] == "step-1"

    async def test_a_stopped_proxy_takes_settings_but_no_orders(
        self, make_proxy: Callable[..., LLMProxy], models: ScriptedModels
    ):
        proxy, store = make_proxy(model_list=[], store=None), TroubledStore()
        assert proxy.get_store() is None
        proxy.set_store(store)
        proxy.update_model_list([backend(models)])
        proxy.set_model_version("step-1")
        for order in (proxy.pause, proxy.resume, proxy.drain, proxy.flush):
            with pytest.raises(LaunchError, match="start"):
                await order()
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, store)
            assert await chat(llm.endpoint) == ANSWER.text
            (span,) = await spans_of(store, rollout)
        assert span.attributes[semconv.MODEL_VERSION] == "step-1"

    async def test_it_may_be_controlled_from_any_thread(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        with ScriptedModels([Reply("the other")]) as other:

            async def orders() -> None:
                proxy.set_model_version("step-1")
                proxy.update_model_list([backend(other)])
                proxy.set_store(proxy_store)
                await proxy.pause()
                assert await proxy.drain(5) == 0
                await proxy.resume()
                await proxy.flush()

            async with running(proxy):
                await asyncio.wait_for(asyncio.to_thread(asyncio.run, orders()), 10)
                rollout, llm = await attempt_of(proxy, proxy_store)
                assert await chat(llm.endpoint) == "the other"
                (span,) = await spans_of(proxy_store, rollout)
            assert span.attributes[semconv.MODEL_VERSION] == "step-1"


class ControlTests(ProxyTests):
    """Models, versions and pauses change during calls."""

    async def test_a_new_model_list_counts_at_once(self, proxy: LLMProxy):
        with ScriptedModels([Reply("the other")]) as other:
            async with running(proxy):
                assert await chat(proxy.base_url) == ANSWER.text
                proxy.update_model_list([backend(other)])
                assert await chat(proxy.base_url) == "the other"
                assert proxy.get_model_list() == [backend(other)]

    async def test_each_model_is_served_by_its_own_backend(
        self, make_proxy: Callable[..., LLMProxy], models: ScriptedModels
    ):
        with ScriptedModels([Reply("the other")]) as other:
            proxy = make_proxy(
                model_list=[backend(models), backend(other, "n")], store=TroubledStore()
            )
            async with running(proxy):
                assert await chat(proxy.base_url, model="m") == ANSWER.text
                assert await chat(proxy.base_url, model="n") == "the other"
                assert proxy.as_resource(model="n").model == "n"
                with pytest.raises(ValueError, match="m, n"):
                    proxy.as_resource()
        assert [request.body["model"] for request in models.requests] == ["m"]
        assert [request.body["model"] for request in other.requests] == ["n"]

    async def test_an_invalid_model_list_changes_nothing(
        self, proxy: LLMProxy, models: ScriptedModels
    ):
        bad: list[Any] = [[{"model_name": "m"}], [{"litellm_params": {"model": "m"}}], [5]]
        async with running(proxy):
            for model_list in bad:
                with pytest.raises(ConfigError):
                    proxy.update_model_list(model_list)
            assert proxy.get_model_list() == [backend(models)]
            assert await chat(proxy.base_url) == ANSWER.text

    async def test_the_version_of_one_model_is_its_own(
        self, make_proxy: Callable[..., LLMProxy], models: ScriptedModels
    ):
        store = TroubledStore()
        proxy = make_proxy(model_list=[backend(models), backend(models, "n")], store=store)
        async with running(proxy):
            rollout = await store.start_rollout("task")
            ids = (rollout.rollout_id, rollout.attempt.attempt_id)
            llm = proxy.as_resource(*ids, model="m")
            proxy.set_model_version("step-1", "n")
            for name in ("m", "n"):
                await chat(llm.endpoint, model=name)
            spans = await spans_of(store, rollout)
        versions = [span.attributes.get(semconv.MODEL_VERSION) for span in spans]
        assert versions[1] == "step-1"
        assert versions[0] != "step-1"

    async def test_a_drain_may_abort_calls(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("late", delay=60), ANSWER]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            call = asyncio.ensure_future(chat(llm.endpoint))
            assert await soon(lambda: bool(models.requests))
            assert await proxy.drain(0.05, abort=True) == 1
            with pytest.raises((RuntimeError, aiohttp.ClientError)):
                await asyncio.wait_for(call, 3)
            await proxy.resume()
            assert await chat(llm.endpoint) == ANSWER.text
            await proxy.flush()
            spans = await spans_of(proxy_store, rollout)
        assert sorted(span.status.status_code == "ERROR" for span in spans) == [False, True]

    async def test_spans_carry_the_models_version(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            for version in ("step-1", "step-2"):
                proxy.set_model_version(version)
                await chat(llm.endpoint)
            spans = await spans_of(proxy_store, rollout)
        versions = [span.attributes.get(semconv.MODEL_VERSION) for span in spans]
        assert versions == ["step-1", "step-2"]

    async def test_a_call_keeps_the_version_that_it_began_with(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("late", delay=0.3)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            proxy.set_model_version("step-1")
            call = asyncio.ensure_future(chat(llm.endpoint))
            assert await soon(lambda: bool(models.requests))
            proxy.set_model_version("step-2")
            assert await call == "late"
            (span,) = await spans_of(proxy_store, rollout)
        assert span.attributes[semconv.MODEL_VERSION] == "step-1"

    async def test_a_paused_proxy_holds_new_calls(self, proxy: LLMProxy):
        async with running(proxy):
            await proxy.pause()
            held = asyncio.ensure_future(chat(proxy.base_url))
            await asyncio.wait({held}, timeout=0.3)
            assert not held.done()
            await proxy.resume()
            assert await asyncio.wait_for(held, 10) == ANSWER.text

    async def test_draining_waits_for_calls_in_flight(
        self, proxy: LLMProxy, models: ScriptedModels
    ):
        models.script = [Reply("late", delay=0.5)]
        async with running(proxy):
            call = asyncio.ensure_future(chat(proxy.base_url))
            assert await soon(lambda: bool(models.requests))
            assert await proxy.drain(0.05) == 1
            assert await proxy.drain(10) == 0
            assert await asyncio.wait_for(call, 10) == "late"
            await proxy.resume()

    async def test_a_drained_proxy_is_paused(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("late", delay=0.3)] * 2 + [ANSWER]
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            calls = [asyncio.ensure_future(chat(llm.endpoint)) for _ in range(2)]
            assert await soon(lambda: len(models.requests) == 2)
            assert await proxy.drain(0.01) == 2
            held = asyncio.ensure_future(chat(llm.endpoint))
            assert await asyncio.gather(*calls) == ["late", "late"]
            assert await proxy.drain(10) == 0
            await asyncio.wait({held}, timeout=0.2)
            assert not held.done()
            assert len(models.requests) == 2
            await proxy.resume()
            assert await asyncio.wait_for(held, 10) == ANSWER.text

    async def test_an_aborted_call_says_so(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("late", delay=60)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)

            async def call() -> tuple[int, Any]:
                async with post(llm.endpoint, "/chat/completions") as reply:
                    return reply.status, await reply.json()

            started = asyncio.ensure_future(call())
            assert await soon(lambda: bool(models.requests))
            assert await proxy.drain(0.05, abort=True) == 1
            status, told = await asyncio.wait_for(started, 10)
            assert await soon(lambda: models.disconnects == 1)
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        assert status >= 500
        assert told["error"]["message"]
        assert span.attributes["error.type"]
        assert span.attributes["http.response.status_code"] == status
        assert span.status.description

    async def test_calls_in_flight_finish_on_their_backend(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("one two three", delay=0.2, chunk_delay=0.05)]
        with ScriptedModels([Reply("the other")]) as other:
            async with running(proxy):
                rollout, llm = await attempt_of(proxy, proxy_store)
                call = asyncio.ensure_future(chat(llm.endpoint, stream=True))
                assert await soon(lambda: bool(models.requests))
                proxy.update_model_list([backend(other)])
                assert await chat(llm.endpoint) == "the other"
                assert await call == "one two three"
                spans = await spans_of(proxy_store, rollout)
        assert [span.status.status_code for span in spans] == ["OK", "OK"]

    async def test_the_model_list_is_a_copy(
        self, make_proxy: Callable[..., LLMProxy], models: ScriptedModels
    ):
        given = [backend(models)]
        proxy = make_proxy(model_list=given, store=TroubledStore())
        given.append(backend(models, "n"))
        taken = proxy.get_model_list()
        assert taken == [backend(models)]
        cast("Any", taken).clear()
        assert proxy.get_model_list() == [backend(models)]

    async def test_a_call_that_was_held_may_be_given_up(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            await proxy.pause()
            held = [asyncio.ensure_future(chat(llm.endpoint)) for _ in range(3)]
            await asyncio.wait(held, timeout=0.2)
            held[0].cancel()
            await asyncio.gather(held[0], return_exceptions=True)
            await proxy.resume()
            assert await asyncio.wait_for(asyncio.gather(*held[1:]), 3) == [ANSWER.text] * 2
