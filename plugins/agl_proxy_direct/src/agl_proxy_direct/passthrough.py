"""Calls below ``/v1`` whose protocol the proxy does not know: relayed unchanged."""

from __future__ import annotations

from typing import cast

from agl_core.genai import Json, dumps, loads
from agl_proxy_direct.access import TOKENIZING
from agl_proxy_direct.errors import CallError
from agl_proxy_direct.exchange import Exchange
from agl_proxy_direct.redaction import send
from agl_proxy_direct.upstream import UpstreamRequest

__all__ = ["PassthroughExchange"]


class PassthroughExchange(Exchange):
    """A call that is relayed unchanged, except for the name of the model in a JSON body."""

    async def _proxy(self) -> None:
        record, app = self._record, self._app
        request = self._json_body()
        if self._models is not None:
            self._check_readable(request)
        named = request is not None and isinstance(request.get("model"), str)
        model = cast("str", request["model"]) if request and named else self._only_model()
        self._check_model(model)
        record.model = model
        if self._span is not None and f"{self._method} {self._route.endpoint}" not in TOKENIZING:
            self._reservation = await app.limits.admit(self._span.rollout_id, len(self._body))
        member = await app.balancer.acquire(model, self._route.rollout_id or "")
        backend = member.backend
        record.backend, record.provider = backend.api_base, backend.provider
        record.version, record.tries = member.version, 1
        failed: bool | None = None
        self._in_flight = True
        try:
            body = self._body or None
            if request is not None and named:
                # Serialized even if the name is right: parsers differ in which of two equal keys
                # they take, and the model checked above must be the one that the backend reads.
                body = dumps({**request, "model": backend.model})
            sent = UpstreamRequest(
                backend,
                self._route.endpoint,
                None,
                body,
                self._headers,
                method=self._method,
                query=self._query,
                forward_key=app.forwards_keys,
                route=self._route,
            )
            response = await send(app.upstream, sent)
            try:
                await self._copy(response)
                failed = response.status >= 500
            finally:
                await response.close()
        except Exception:
            failed = True
            raise
        finally:
            self._in_flight = False
            app.balancer.release(member, failed=failed)

    def _check_readable(self, request: Json | None) -> None:
        """Refuse a body in which a model could be named that the caller may not use.

        Raises:
            CallError: 415, it is not a JSON object, or encoded.
        """
        codings = (value for name, value in self._headers if name == b"content-encoding")
        if any(value.strip().lower() not in (b"", b"identity") for value in codings):
            message = "send the body without content-encoding: this token is for some models only"
            raise CallError(415, message, "encoding_not_supported")
        if self._body and request is None:
            message = "send a JSON object: this token is for some models only"
            raise CallError(415, message, "body_not_supported")

    def _json_body(self) -> Json | None:
        """Return the body if it is a JSON object."""
        if not self._body.lstrip().startswith(b"{"):
            return None
        try:
            parsed = loads(self._body)
        except ValueError:
            return None
        return cast("Json", parsed) if isinstance(parsed, dict) else None

    def _only_model(self) -> str:
        models = self._app.balancer.models
        if len(models) != 1:
            raise CallError(400, "name a model: the body has no 'model'", "model_missing")
        return models[0]
