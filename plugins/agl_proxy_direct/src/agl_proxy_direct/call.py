"""One call of an agent: to a backend and back, with its span.

::

    request -> limits -> backend -> translate, ask for more -> upstream
    upstream -> assemble on the side -> hide what was not asked for -> translate -> agent

The agent gets the last bytes of an answer once its span is in the store, so a span is there before
the agent can return and its attempt can end. The wait is bounded; a span that is late stays with
the spool.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import cast

from agl_core.genai import ENDPOINTS, Json, Protocol, dumps, loads
from agl_core.genai.codec import (
    TRANSLATABLE,
    CodecError,
    lost_in_request,
    lost_in_response,
    translate_request,
    translate_response,
)
from agl_proxy_direct.balancer import Member
from agl_proxy_direct.exchange import Exchange
from agl_proxy_direct.failures import CallError, translate_error
from agl_proxy_direct.relay import StreamRelay
from agl_proxy_direct.request_plan import Hidden, ask
from agl_proxy_direct.upstream import Answer, Outgoing, UpstreamError
from agl_serving.messages import JSON

__all__ = ["Call"]


class Refused(UpstreamError):
    """A backend answered with an error; it is passed on if no other backend does better."""

    def __init__(self, member: Member, protocol: Protocol, response: Answer, body: bytes) -> None:
        status = response.status
        super().__init__(
            status,
            f"the backend {member.backend.api_base} answered {status}",
            f"backend_{status}",
            backend_fault=status >= 500,
        )
        self.protocol: Protocol = protocol
        self.body = body
        self.headers = response.headers


class Call(Exchange):
    """A call of a protocol that the proxy understands."""

    @property
    def _protocol(self) -> Protocol:
        assert self._route.protocol is not None
        return self._route.protocol

    async def _exchange(self) -> None:
        app, record, rollout = self._app, self._record, self._route.rollout_id or ""
        request = self._parse()
        if self._ticket is not None:
            app.limits.admit(self._ticket.rollout_id)
        failed: list[Member] = []
        while True:
            queued = time.monotonic()
            member = await app.balancer.acquire(record.model, rollout, failed)
            record.queue_seconds += time.monotonic() - queued
            record.tries += 1
            fault: bool | None = None
            try:
                await self._try(member, request)
                fault = False
                return
            except UpstreamError as error:
                fault = True if error.backend_fault else None
                if not self._may_retry(error, member, failed):
                    raise
                failed.append(member)
            finally:
                app.balancer.release(member, failed=fault)

    def _parse(self) -> Json:
        try:
            request = loads(self._body)
        except ValueError as error:
            raise CallError(400, f"the body is not JSON: {error}", "invalid_json") from None
        if not isinstance(request, dict):
            raise CallError(400, "the body must be a JSON object", "invalid_json")
        request = cast("Json", request)
        model = request.get("model")
        if model is None and len(self._app.balancer.models) == 1:
            model = self._app.balancer.models[0]
        if not isinstance(model, str):
            raise CallError(400, "say which model: the body has no 'model'", "model_missing")
        self._check_model(model)
        self._record.model = model
        self._record.streamed = bool(request.get("stream"))
        self._record.request = self._as_chat(request)
        return request

    def _as_chat(self, request: Json) -> Json:
        """Return what the span says was asked."""
        if self._protocol not in ("responses", "messages"):
            return request
        try:
            return translate_request(self._protocol, "chat", request)
        except CodecError as error:
            # The backend may know more of its own protocol than the codec does.
            self._record.extra["agl.proxy.raw_request"] = dumps(request).decode()
            self._record.extra["agl.proxy.codec_error"] = str(error)
            return {}

    def _may_retry(self, error: UpstreamError, member: Member, failed: list[Member]) -> bool:
        """Whether another try may help; never once the agent has got a byte."""
        if self._begun or len(failed) >= self._app.options.num_retries:
            return False
        if isinstance(error, Refused) and error.status not in (429, 500, 502, 503, 504, 529):
            return False
        if self._app.balancer.choices(self._record.model) > len({*failed, member}):
            return True
        # An idle connection that the backend was just closing: nothing reached the model.
        return error.code == "connection_broken" and member not in failed

    async def _try(self, member: Member, request: Json) -> None:
        record, backend = self._record, member.backend
        spoken = self._backend_protocol(member)
        record.backend, record.provider = backend.api_base, backend.provider
        record.backend_protocol, record.version = spoken, member.version
        if spoken == self._protocol:
            body = dict(request)
        else:
            try:
                body = translate_request(self._protocol, spoken, request)
            except CodecError as error:
                raise CallError(400, str(error), "not_translatable") from None
            record.lost = lost_in_request(self._protocol, spoken, request)
        hidden = ask(body, spoken, backend, capture=self._ticket is not None)
        response = await self._app.upstream.send(
            Outgoing(
                backend,
                ENDPOINTS[spoken],
                spoken,
                body,
                self._headers,
                query=self._query,
                forward_key=self._app.forwards_keys,
            )
        )
        try:
            if response.status >= 400:
                raise Refused(member, spoken, response, await response.read())
            if response.streamed:
                await self._stream(member, spoken, response, hidden)
            else:
                await self._whole(member, spoken, response, hidden)
        finally:
            await response.close()

    def _backend_protocol(self, member: Member) -> Protocol:
        spoken = member.backend.protocols
        if self._protocol in spoken:
            return self._protocol
        for protocol in spoken:
            if {protocol, self._protocol} <= TRANSLATABLE:
                return protocol
        raise CallError(
            400,
            f"the backends of model {self._record.model!r} take no {self._protocol} calls; "
            f"they take: {', '.join(spoken)}",
            "protocol_not_supported",
        )

    # -- answers ---------------------------------------------------------------------------------

    async def _whole(
        self, member: Member, spoken: Protocol, response: Answer, hidden: Hidden
    ) -> None:
        raw = await response.read()
        self._record.first_token_seconds = time.monotonic() - self._clock
        try:
            answer = loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UpstreamError(
                502,
                f"the backend {member.backend.api_base} answered no JSON object: {raw[:80]!r}",
                "backend_garbage",
            )
        answer = cast("Json", answer)
        self._note(member, spoken, answer)
        if spoken != self._protocol:
            raw = dumps(translate_response(spoken, self._protocol, answer))
        elif hidden:
            hidden.strip(answer)
            raw = dumps(answer)
        await self._commit(response.status)
        await self._answer(response.status, raw, response.headers)

    async def _stream(
        self, member: Member, spoken: Protocol, response: Answer, hidden: Hidden
    ) -> None:
        relay = StreamRelay(spoken, self._protocol, hidden, self._record.request)
        record = self._record
        try:
            async with aclosing(response.chunks()) as chunks:
                async for chunk in chunks:
                    out = self._relay(relay, chunk, member)
                    if record.first_token_seconds is None and relay.assembler.started:
                        record.first_token_seconds = time.monotonic() - self._clock
                    if out:
                        await self._begin(response.status, response.headers)
                        body = {"type": "http.response.body", "body": out, "more_body": True}
                        await self._send(body)
        finally:
            if relay.events:
                self._note(member, spoken, relay.assembler.result())
        if not relay.complete:
            raise UpstreamError(
                502, f"the backend {member.backend.api_base} ended its stream early", "stream_cut"
            )
        if relay.assembler.error is not None:
            record.error, record.error_type = relay.assembler.error, "backend_error"
        rest = relay.close()
        await self._commit(response.status)
        await self._begin(response.status, response.headers)
        await self._send({"type": "http.response.body", "body": rest})

    def _relay(self, relay: StreamRelay, chunk: bytes, member: Member) -> bytes:
        try:
            return relay.feed(chunk)
        except ValueError as error:
            raise UpstreamError(
                502,
                f"the backend {member.backend.api_base} sent a broken stream: {error}",
                "backend_garbage",
            ) from None

    def _note(self, member: Member, spoken: Protocol, answer: Json) -> None:
        """Keep what the model answered for the span."""
        record = self._record
        record.end_version = member.version
        if spoken != self._protocol:
            record.lost = sorted({*record.lost, *lost_in_response(spoken, self._protocol, answer)})
        if spoken in ("responses", "messages"):
            try:
                record.response = translate_response(spoken, "chat", answer)
            except CodecError as error:
                record.extra["agl.proxy.raw_response"] = dumps(answer).decode()
                record.extra["agl.proxy.codec_error"] = str(error)
        else:
            # What is hidden from the agent is cut out of the answer itself.
            record.response = {
                **answer,
                "choices": [dict(choice) for choice in answer.get("choices") or ()],
            }

    async def _tell(self, error: UpstreamError) -> None:
        """Answer with a backend's own error, in the agent's protocol."""
        if not isinstance(error, Refused):
            await super()._tell(error)
            return
        body = translate_error(error.protocol, self._protocol, error.status, error.body)
        self._record.error = body[:2000].decode("utf-8", "replace")
        self._record.error_type = error.code
        await self._commit(error.status)
        headers = error.headers
        if body is not error.body:
            headers = [JSON, *((k, v) for k, v in headers if k != b"content-type")]
        await self._answer(error.status, body, headers)
