"""The conformance suite for LLM servers.

::

    class TestMyServer(LLMServerSuite):
        flags = frozenset({"weights"})

        @pytest.fixture
        def server(self):
            return MyServer(...)

        @pytest.fixture
        def new_weights(self):
            return "path/of/other/weights"
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import pytest

from agl_core.errors import LLMServerError
from agl_core.llm_server import LLMServer
from agl_testing.processes import children, command_of, still_running
from agl_testing.suite import Suite, requires

__all__ = ["LLMServerSuite"]

REAP_SECONDS = 2.0
"""Longest wait for the end of processes that were killed: they are not ours to wait for."""


class LLMServerSuite(Suite):
    """Tests the contract of LLM servers.

    The author supplies a fixture ``server``: a server that is not started, on a free port of
    loopback. With the flag ``weights``, also ``new_weights``.
    """

    suite_name = "llm_server"
    FLAGS: ClassVar[dict[str, str]] = {
        "weights": "the server takes new weights while it runs; the fixture `new_weights` is a path"
        " of some that make it answer otherwise",
        "token_ids": "the server returns token ids to calls with `return_token_ids`, as vLLM does",
    }

    @pytest.fixture
    def server(self) -> LLMServer:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `server`")

    @pytest.fixture
    def new_weights(self) -> str | Path:
        raise NotImplementedError(
            f"{type(self).__name__} claims `weights` and must supply a fixture `new_weights`"
        )

    async def test_it_answers_from_start_to_stop_and_again(self, server: LLMServer):
        assert isinstance(server, LLMServer)
        assert not server.is_running()
        for _ in range(2):
            await server.start()
            assert server.is_running()
            body = await chat(server)
            assert body["choices"][0]["message"]["role"] == "assistant"
            assert body["choices"][0]["finish_reason"]
            assert body["usage"]["total_tokens"] > 0
            await server.stop()
            assert not server.is_running()

    async def test_it_leaves_its_port_when_it_stops(self, server: LLMServer):
        async with server:
            host, port = server.base_url.split("/")[2].split(":")
        with pytest.raises(OSError, match=r".+"), socket.create_connection((host, int(port)), 1):
            pass

    async def test_a_second_stop_does_nothing(self, server: LLMServer):
        await server.stop()
        await server.start()
        await server.stop()
        await server.stop()

    async def test_a_second_start_is_refused(self, server: LLMServer):
        async with server:
            with pytest.raises(LLMServerError):
                await server.start()
            assert await chat(server)

    async def test_the_url_is_known_while_it_runs(self, server: LLMServer):
        with pytest.raises(LLMServerError):
            _ = server.base_url
        async with server:
            assert server.base_url.endswith("/v1")
            (entry,) = server.model_list()
            assert entry["model_name"] == server.model
            assert entry["litellm_params"]["api_base"] == server.base_url

    async def test_it_lists_its_model(self, server: LLMServer):
        async with (
            server,
            aiohttp.ClientSession() as session,
            session.get(f"{server.base_url}/models") as reply,
        ):
            names = [entry["id"] for entry in (await reply.json())["data"]]
        assert server.model in names

    async def test_an_unknown_model_is_refused(self, server: LLMServer):
        async with server:
            with pytest.raises(aiohttp.ClientResponseError) as raised:
                await chat(server, model="nobody-serves-this")
        assert 400 <= raised.value.status < 500

    @pytest.mark.parametrize("error", [None, ZeroDivisionError()], ids=["stop", "error"])
    async def test_it_leaves_no_process_behind(
        self, server: LLMServer, error: BaseException | None
    ):
        before = children()
        started: set[int] = set()
        try:
            async with server:
                await chat(server)
                started = children() - before
                if error is not None:
                    raise error
        except ZeroDivisionError:
            pass
        # Workers whose parent has ended are no longer below this process.
        deadline = time.monotonic() + REAP_SECONDS
        while left := still_running(started | (children() - before)):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)
        commands = [command_of(pid) for pid in left]
        assert not left, f"these processes run on after stop: {commands}"

    async def test_many_calls_at_once(self, server: LLMServer):
        async with server:
            bodies = await asyncio.gather(*(chat(server) for _ in range(16)))
        assert len({body["id"] for body in bodies}) == 16

    async def test_an_error_in_its_context_stops_it(self, server: LLMServer):
        with pytest.raises(ZeroDivisionError):
            async with server:
                raise ZeroDivisionError
        assert not server.is_running()

    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), TimeoutError("slow")])
    async def test_what_leaves_its_context_stops_it_and_passes(
        self, server: LLMServer, error: BaseException
    ):
        seen: list[BaseException] = []
        try:
            async with server:
                raise error
        except BaseException as raised:
            seen.append(raised)
        assert seen == [error]
        assert not server.is_running()

    @requires("token_ids")
    async def test_token_ids_come_when_asked_for(self, server: LLMServer):
        async with server:
            body = await chat(server, return_token_ids=True)
        assert all(isinstance(token, int) for token in body["prompt_token_ids"])
        assert body["choices"][0]["token_ids"]

    @requires("weights")
    async def test_new_weights_answer_every_call_after_the_update(
        self, server: LLMServer, new_weights: str | Path
    ):
        async with server:
            assert server.model_version == "0"
            before = text_of(await chat(server))
            await server.update_weights(new_weights, version="step-1")
            assert server.model_version == "step-1"
            assert text_of(await chat(server)) != before

    @requires("weights")
    async def test_bad_weights_are_refused_and_the_old_ones_stay(
        self, server: LLMServer, tmp_path: Path
    ):
        async with server:
            before = text_of(await chat(server))
            with pytest.raises(LLMServerError):
                await server.update_weights(tmp_path / "nothing", version="step-1")
            assert server.model_version == "0"
            assert text_of(await chat(server)) == before

    @requires("weights")
    async def test_the_version_after_a_restart_is_that_of_the_weights(
        self, server: LLMServer, new_weights: str | Path
    ):
        async with server:
            first = text_of(await chat(server))
            await server.update_weights(new_weights, version="step-1")
        async with server:
            # A server may start with the weights that it had, or with those that it was given.
            version = "0" if text_of(await chat(server)) == first else "step-1"
            assert server.model_version == version, (
                "after a restart it names a version whose weights it does not serve"
            )

    @requires("weights")
    async def test_weights_need_a_running_server(self, server: LLMServer, new_weights: str | Path):
        with pytest.raises(LLMServerError):
            await server.update_weights(new_weights, version="step-1")


async def chat(server: LLMServer, **body: Any) -> dict[str, Any]:
    """Return the model's reply to a fixed question, sampled greedily."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": "How are you?"}],
        "temperature": 0,
        "max_tokens": 16,
        **body,
    }
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{server.base_url}/chat/completions", json=body) as reply,
    ):
        return await reply.json()


def text_of(body: dict[str, Any]) -> str:
    return body["choices"][0]["message"]["content"]
