"""Sends requests through LiteLLM's router."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import aiohttp
import httpx
from pydantic_core import to_json

from agl_core.genai import Protocol
from agl_proxy_direct import (
    NOT_FORWARDED,
    CallError,
    HttpUpstream,
    Upstream,
    UpstreamRequest,
    UpstreamResponse,
)
from agl_proxy_litellm.arguments import arguments
from agl_proxy_litellm.backends import Backend, LiteLLMBackend
from agl_proxy_litellm.library import library
from agl_proxy_litellm.responses import RawStream, TranslatedStream, error_response, whole_response
from agl_proxy_litellm.tap import Tap, TapTransport

__all__ = ["LiteLLMUpstream"]

Json = dict[str, Any]

_METHODS: Final[dict[Protocol, str]] = {
    "chat": "acompletion",
    "completions": "atext_completion",
    "embeddings": "aembedding",
}
_FORWARDED: Final = ("anthropic-beta", "openai-", "traceparent", "tracestate", "x-")
"""Prefixes of the agent's headers that are forwarded to the provider."""
_ABOUT_THE_AGENT: Final = ("x-forwarded", "x-real-ip", "x-stainless")
_KEEP_ALIVE: Final = 4.0
"""Seconds; uvicorn closes idle connections after 5 by default."""

_open: set[LiteLLMUpstream] = set()
"""The open upstreams of this process, which share LiteLLM's own clients."""


class LiteLLMUpstream(Upstream):
    """Sends requests through LiteLLM's router, one deployment per backend.

    The proxy does retries, health checks and load balancing, so each router group has one
    deployment and the router tries once. Some calls bypass LiteLLM, which serves them only with its
    own proxy's dependencies or not at all: Messages and Responses to servers that speak them, and
    calls that are passed through.
    """

    def __init__(self) -> None:
        litellm = library()
        self._litellm = litellm
        self._router = litellm.Router(num_retries=0, disable_cooldowns=True, max_fallbacks=0)
        # Removes the callbacks that count tokens per deployment for routing strategies, which are
        # off here. They would stay registered in LiteLLM after the router is gone.
        self._router.discard()
        self._http = HttpUpstream()
        self._numbers = itertools.count()
        self._deployments: dict[Backend, str] = {}
        self._sdks: dict[Backend, Any] = {}
        handlers = litellm.llms.custom_httpx
        inner = handlers.aiohttp_transport.LiteLLMAiohttpTransport(client=_session)
        self._transport = TapTransport(inner)
        self._handler = handlers.http_handler.AsyncHTTPHandler(transport=self._transport)
        self._client = httpx.AsyncClient(transport=self._transport)
        _open.add(self)

    async def close(self) -> None:
        await self._handler.close()
        await self._client.aclose()
        await self._http.close()
        _open.discard(self)
        if not _open:
            await self._litellm.close_litellm_async_clients()

    def update(self, backends: Iterable[Backend]) -> None:
        kept = set(backends)
        self._http.update(kept)
        for backend in kept - self._deployments.keys():
            self._add(backend)
        for backend in self._deployments.keys() - kept:
            # A call in flight already has its parameters.
            self._router.delete_deployment(id=self._deployments.pop(backend))
            self._sdks.pop(backend, None)

    def _add(self, backend: Backend) -> str:
        assert isinstance(backend, LiteLLMBackend)
        name = self._deployments[backend] = f"agl-{next(self._numbers)}"
        params = {**dict(backend.params), "max_retries": 0}
        deployment = self._litellm.types.router.Deployment(
            model_name=name, litellm_params=params, model_info={"id": name}
        )
        self._router.add_deployment(deployment)
        return name

    # -- calls -----------------------------------------------------------------------------------

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        backend = request.backend
        assert isinstance(backend, LiteLLMBackend)
        if request.protocol is None or request.protocol not in _METHODS:
            return await self._bypass(request)
        own = {name.lower(): value for name, value in backend.headers}
        tap = Tap(backend.connect_timeout, own.get("authorization"))
        tap.open()
        try:
            async with asyncio.timeout(backend.timeout):
                return await self._respond(request, request.protocol, backend, tap)
        except CallError:
            raise
        except Exception as error:
            if not _is_utf8(request.body):
                message = "the request has a lone surrogate, which the provider's SDK cannot send"
                raise CallError(400, message, "invalid_json") from error
            try:
                return await error_response(error, tap, backend)
            finally:
                await tap.close()
        except BaseException:  # cancelled: the agent disconnected
            await tap.close()
            raise

    async def _respond(
        self, request: UpstreamRequest, protocol: Protocol, backend: LiteLLMBackend, tap: Tap
    ) -> UpstreamResponse:
        result = await self._call(request, protocol, backend)
        if not _is_stream(result):
            return whole_response(result, tap, backend)
        stream = TranslatedStream(result, tap, backend)
        if not tap.status or not backend.speaks_openai:
            await stream.start()  # LiteLLM sends some requests only when their stream is first read
        # LiteLLM answers some calls without our client: from a mock, or through Responses.
        raw = tap.status and backend.speaks_openai
        return RawStream(result, tap, backend) if raw else stream

    async def _bypass(self, request: UpstreamRequest) -> UpstreamResponse:
        if not request.backend.api_base.startswith("http"):
            raise CallError(
                404,
                f"LiteLLM does not support {request.method} {request.endpoint} for the provider "
                f"{request.backend.provider}",
                "not_found",
            )
        return await self._http.send(request)

    def _call(
        self, request: UpstreamRequest, protocol: Protocol, backend: LiteLLMBackend
    ) -> Awaitable[Any]:
        assert isinstance(request.body, dict)
        openai = backend.speaks_openai
        kwargs = arguments(request.body, openai=openai)
        kwargs["model"] = self._deployments.get(backend) or self._add(backend)
        kwargs["timeout"] = backend.timeout
        headers = {**_forwarded(request), **dict(backend.headers)}
        if headers:
            kwargs["extra_headers"] = headers
        client = self._client_for(backend, protocol) if openai else None
        if client is not None:
            kwargs["client"] = client
        method: Callable[..., Awaitable[Any]] = getattr(self._router, _METHODS[protocol])
        return method(**kwargs)

    def _client_for(self, backend: LiteLLMBackend, protocol: Protocol) -> Any:
        """Return the client that LiteLLM sends a call with: an HTTP handler or OpenAI's SDK."""
        vllm = backend.provider == "hosted_vllm"
        if vllm and protocol != "completions":
            return self._handler
        sdk = self._sdks.get(backend)
        if sdk is None:
            from openai import AsyncOpenAI

            sdk = self._sdks[backend] = AsyncOpenAI(
                base_url=backend.api_base,
                api_key=backend.api_key or "none",
                http_client=self._client,
                max_retries=0,
            )
        return sdk


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE, ttl_dns_cache=60),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _is_stream(result: Any) -> bool:
    return hasattr(result, "__aiter__") and not hasattr(result, "model_dump")


def _forwarded(request: UpstreamRequest) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, value in request.headers:
        name = raw_name.decode("latin-1")
        if name in NOT_FORWARDED or name.startswith(_ABOUT_THE_AGENT):
            continue
        if name.startswith(_FORWARDED):
            headers[name] = value.decode("latin-1")
    return headers


def _is_utf8(body: Any) -> bool:
    try:
        to_json(body)
    except ValueError:
        return False
    return True
