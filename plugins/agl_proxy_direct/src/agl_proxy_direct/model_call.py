"""One model call in a protocol that the proxy knows, from the agent to a backend and back.

::

    request  -> limits -> choose a backend -> translate -> request extra fields -> upstream
    response -> assemble for the span -> strip extra fields -> translate -> agent

The agent gets the last bytes of a response when its span is in the store, so the span is stored
before the agent can return and its attempt can end. The wait is bounded; a span that is late stays
in the spool.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeVar, cast

from agl_core.genai import (
    MALFORMED,
    CodecError,
    ExtraFields,
    Json,
    Protocol,
    can_translate,
    dumps,
    get_protocol,
    loads,
    lost_in_request,
    lost_in_response,
    translate_request,
    translate_response,
    without_secrets,
)
from agl_core.metrics import is_recording
from agl_proxy_direct.answer_body import (
    EVENTS,
    as_stream,
    begins_with_event,
    parse_answer,
    peek,
)
from agl_proxy_direct.backends import Backend
from agl_proxy_direct.balancer import Member
from agl_proxy_direct.continuation import Plan
from agl_proxy_direct.demands import Demand
from agl_proxy_direct.errors import CallError, error_body, translate_error
from agl_proxy_direct.exchange import Exchange
from agl_proxy_direct.extra_fields import complete_request
from agl_proxy_direct.history import Fallback
from agl_proxy_direct.limits import check_messages, most_generated
from agl_proxy_direct.redaction import send
from agl_proxy_direct.relay import StreamRelay, wants_usage
from agl_proxy_direct.upstream import UpstreamError, UpstreamRequest, UpstreamResponse
from agl_serving import JSON, HTTPError, reject_non_finite

__all__ = ["ModelCallExchange"]

T = TypeVar("T")

# 529 is Anthropic's "overloaded". Any other status says that the request itself is wrong.
_RETRIED_STATUSES: Final = frozenset({429, 500, 502, 503, 504, 529})
_REFUSED_STATUSES: Final = frozenset({400, 413, 422})
"""Statuses with which a backend refuses a prompt that it might take in another form."""


class BackendRefusal(UpstreamError):
    """A backend answered with an error. The agent gets it if no other backend succeeds.

    Args:
        member: The backend.
        protocol: Its protocol.
        response: Its response.
        body: The body of that response.
        status: Status of the error; of an error within a response of status 200, its own.
        message: What the error is, for the span; None for the body.
    """

    def __init__(
        self,
        member: Member,
        protocol: Protocol,
        response: UpstreamResponse,
        body: bytes,
        status: int | None = None,
        message: str | None = None,
    ) -> None:
        status = response.status if status is None else status
        super().__init__(
            status,
            message or f"the backend {member.backend.api_base} answered {status}",
            f"backend_{status}",
            backend_fault=status >= 500,
        )
        self.protocol: Protocol = protocol
        self.body = body
        self.headers = response.headers
        self.http_status = response.status
        self.said = message


class ModelCallExchange(Exchange):
    """A model call in a known protocol."""

    _plan: Plan | None = None
    _met: tuple[Demand, ...] = ()
    """The demands of its backend that the request of this try meets."""

    @property
    def _protocol(self) -> Protocol:
        assert self._route.protocol is not None
        return self._route.protocol

    @property
    def _is_recorded(self) -> bool:
        """Whether a span, or the metrics, say what the response was."""
        return self._span is not None or is_recording()

    async def _proxy(self) -> None:
        app, record, rollout = self._app, self._record, self._route.rollout_id or ""
        request = self._parse_request()
        if self._span is not None:
            most: float = len(self._body)
            protocol = get_protocol(self._protocol)
            if protocol.has_messages:
                most += most_generated(request, protocol.choices_of(request))
            self._reservation = await app.limits.admit(self._span.rollout_id, most)
        failed: list[Member] = []
        before = dict(record.extra)
        while True:
            record.forget_response(before)
            queued = time.monotonic()
            member = await app.balancer.acquire(record.model, rollout, failed)
            record.queue_seconds += time.monotonic() - queued
            record.tries += 1
            fault: bool | None = None
            self._in_flight = True
            try:
                await self._try(member, request)
                fault = False
                return
            except UpstreamError as error:
                fault = True if error.backend_fault else None
                if self._learns(error, member):
                    fault = None
                    continue
                if not self._may_retry(error, member, failed):
                    raise
                failed.append(member)
            finally:
                self._in_flight = False
                app.balancer.release(member, failed=fault)

    def _parse_request(self) -> Json:
        try:
            request = loads(self._body)
            reject_non_finite(self._body, overflow=True, parsed=request)
        except ValueError as error:
            raise CallError(400, f"the body is not JSON: {error}", "invalid_json") from None
        except HTTPError:
            message = "the body is not JSON: NaN and infinities are not numbers of JSON"
            raise CallError(400, message, "invalid_json") from None
        if not isinstance(request, dict):
            raise CallError(400, "the body must be a JSON object", "invalid_json")
        request = cast("Json", request)
        check_messages(request)
        model = request.get("model") if self._route.model is None else self._route.model
        if model is None and len(self._app.balancer.models) == 1:
            model = self._app.balancer.models[0]
        if not isinstance(model, str):
            raise CallError(400, "name a model: the body has no 'model'", "model_missing")
        self._check_model(model)
        self._record.model = model
        self._record.streamed = bool(request.get("stream"))
        self._record.request = self._to_chat(request)
        return request

    def _to_chat(self, request: Json) -> Json:
        """Return the request as the span records it: in the shape of chat."""
        try:
            return get_protocol(self._protocol).recorded_request(request)
        except MALFORMED as error:
            # The backend decides whether it accepts the request, so the call continues.
            raw = dumps(without_secrets(request)).decode()
            self._record.extra["agl.proxy.raw_request"] = raw
            self._record.extra["agl.proxy.codec_error"] = f"{type(error).__name__}: {error!s:.200}"
            return {}

    def _may_retry(self, error: UpstreamError, member: Member, failed: list[Member]) -> bool:
        """Return whether another try may succeed; false after the agent got a byte."""
        if self._headers_sent or len(failed) >= self._app.config.num_retries:
            return False
        if isinstance(error, BackendRefusal) and error.status not in _RETRIED_STATUSES:
            return False
        if self._app.balancer.count_backends(self._record.model) > len({*failed, member}):
            return True
        # Most often the backend closed an idle connection while the request was written.
        return error.code == "connection_broken" and member not in failed

    def _learns(self, error: UpstreamError, member: Member) -> bool:
        """Return whether a backend demands another form of a translated request."""
        if (
            not isinstance(error, BackendRefusal)
            or error.protocol == self._protocol
            or self._headers_sent
        ):
            return False
        found = self._app.demands.learn(member.backend, error.body)
        # Those of this try count, whatever other calls have learned meanwhile.
        return not set(self._met).issuperset(found)

    def _meet_demands(self, body: Json, backend: Backend) -> None:
        """Change a translated request to the form that its backend demands, in place."""
        self._met = self._app.demands.of(backend)
        lost = {demand.lost for demand in self._met if demand.meet(body)} - {""}
        self._record.lost = sorted(lost.union(self._record.lost))

    async def _try(self, member: Member, request: Json) -> None:
        record, backend = self._record, member.backend
        target = self._backend_protocol(member)
        record.backend, record.provider = backend.api_base, backend.provider
        record.backend_protocol, record.version = target, member.version
        try:
            body = {**translate_request(self._protocol, target, request)}
            record.lost = lost_in_request(self._protocol, target, request)
            self._met = ()
            if target != self._protocol:
                self._meet_demands(body, backend)
            recorded = None if self._span is None else record.extra
            extra = complete_request(body, target, backend, recorded)
        except CodecError as error:
            raise CallError(400, str(error), "not_translatable") from None
        sent = UpstreamRequest(
            backend,
            get_protocol(target).endpoint,
            target,
            body,
            self._headers,
            query=self._query,
            forward_key=self._app.forwards_keys,
            route=self._route,
            call=request,
        )
        await self._plan_prompt(sent)
        try:
            await self._call(member, target, sent, extra, request)
        except BackendRefusal as error:
            if self._headers_sent or not self._give_up_plan(error, body):
                raise
            await self._call(member, target, sent, extra, request)

    async def _plan_prompt(self, sent: UpstreamRequest) -> None:
        """Let the prompt continue the conversation's tokens, where the proxy is asked to."""
        continuation, span = self._app.continuation, self._span
        self._plan = None
        if continuation is None or span is None or sent.protocol != "chat":
            return
        attempt = (span.rollout_id, span.attempt_id)
        self._plan = await continuation.plan(attempt, self._record.model, sent)
        if self._plan is not None:
            self._plan.complete(cast("Json", sent.body))

    def _give_up_plan(self, error: BackendRefusal, body: Json) -> bool:
        """Return whether a refused call can be sent again without the tokens of its prompt."""
        plan = self._plan
        if plan is None or plan.ids is None or error.status not in _REFUSED_STATUSES:
            return False
        plan.fall_back(Fallback.REFUSED)
        del body["kv_transfer_params"]
        return True

    def _keep_answer(self) -> None:
        """Keep the tokens of the answer, before the agent can send it back."""
        continuation, response = self._app.continuation, self._record.response
        if continuation is not None and self._plan is not None and response is not None:
            continuation.keep(self._plan, self._record.backend, response)

    def _submit_span(self) -> None:
        if self._plan is not None:
            self._record.extra |= self._plan.attributes()
        super()._submit_span()

    async def _call(
        self,
        member: Member,
        target: Protocol,
        sent: UpstreamRequest,
        extra: ExtraFields,
        request: Json,
    ) -> None:
        record = self._record
        response = await send(self._app.upstream, sent)
        record.extra |= response.attributes
        try:
            if response.recorded:
                self._span = None
                await self._copy(response)
                return
            if response.status >= 400:
                raise BackendRefusal(member, target, response, await response.read())
            if record.streamed and not response.streamed:
                response = await peek(response)
            if response.streamed and (record.streamed or target == self._protocol):
                await self._relay_stream(member, target, response, extra, request)
            else:
                await self._relay_body(member, target, response, extra, request)
        finally:
            await response.close()

    def _backend_protocol(self, member: Member) -> Protocol:
        spoken = member.backend.protocols
        if self._protocol in spoken:
            return self._protocol
        for protocol in spoken:
            if can_translate(self._protocol, protocol):
                return protocol
        raise CallError(
            400,
            f"the backends of model {self._record.model!r} do not accept {self._protocol} calls; "
            f"they accept: {', '.join(spoken)}",
            "protocol_not_supported",
        )

    # -- responses -------------------------------------------------------------------------------

    async def _relay_body(
        self,
        member: Member,
        target: Protocol,
        response: UpstreamResponse,
        extra: ExtraFields,
        request: Json,
    ) -> None:
        raw = await response.read()
        self._record.first_token_seconds = time.monotonic() - self._started_at
        answer = self._answer(member, target, response, raw)
        if self._is_recorded:
            try:
                self._record_response(member, target, answer)
            except MALFORMED as error:
                notes = [f"the response: {type(error).__name__}: {error!s:.200}"]
                self._not_understood(notes, answer)
        headers = response.headers
        try:
            if target != self._protocol:
                raw = self._translated(target, answer, request)
                kind = EVENTS if self._record.streamed else JSON
                headers = [kind, *(pair for pair in headers if pair[0] != b"content-type")]
            elif extra and not begins_with_event(raw):
                extra.strip(answer)
                raw = dumps(answer)
        except MALFORMED as error:
            self._not_understood([f"the response: {type(error).__name__}: {error!s:.200}"], answer)
            if target != self._protocol:
                raise UpstreamError(
                    502,
                    f"the backend {member.backend.api_base} sent an answer that is not one of "
                    f"{target}: {error!s:.200}",
                    "backend_garbage",
                ) from None
        self._keep_answer()
        await self._store_span(response.status)
        await self._send_response(response.status, raw, headers)

    def _translated(self, target: Protocol, answer: Json, request: Json) -> bytes:
        """Return a whole answer in the agent's protocol, as a stream if the agent wants one."""
        if not self._record.streamed:
            return dumps(translate_response(target, self._protocol, answer, request))
        usage = wants_usage(self._record.request)
        return as_stream(answer, target, self._protocol, usage=usage, request=request)

    def _answer(
        self, member: Member, target: Protocol, response: UpstreamResponse, raw: bytes
    ) -> Json:
        """Return the JSON object of a response.

        Raises:
            UpstreamError: It is not one, so no client could use it.
            BackendRefusal: It is an error.
        """
        try:
            answer, failed = parse_answer(raw, target)
        except MALFORMED:
            raise UpstreamError(
                502,
                f"the backend {member.backend.api_base} did not answer with a JSON object: "
                f"{raw[:80]!r}",
                "backend_garbage",
            ) from None
        if failed is not None:
            message, status = failed
            raise BackendRefusal(member, target, response, raw, status, message)
        return answer

    def _not_understood(self, notes: list[str], answer: Json | None = None) -> None:
        """Say in the span what the record lacks, because the backend sent another shape."""
        if notes:
            known: list[str] = self._record.extra.setdefault("agl.proxy.not_understood", [])
            known += [note for note in notes if note not in known]
        if answer is not None:
            self._record.extra["agl.proxy.raw_response"] = dumps(without_secrets(answer)).decode()

    async def _relay_stream(
        self,
        member: Member,
        target: Protocol,
        response: UpstreamResponse,
        extra: ExtraFields,
        request: Json,
    ) -> None:
        relay = StreamRelay(target, self._protocol, extra, self._record.request, request)
        record = self._record
        try:
            async with aclosing(response.chunks()) as chunks:
                async for chunk in chunks:
                    out = self._call_relay(partial(relay.feed, chunk), member)
                    self._next_event = relay.next_number
                    if record.first_token_seconds is None and relay.assembler.started:
                        record.first_token_seconds = time.monotonic() - self._started_at
                    if out:
                        await self._send_headers(response.status, response.headers)
                        body = {"type": "http.response.body", "body": out, "more_body": True}
                        await self._send(body)
                self._call_relay(relay.end, member)
        finally:
            if relay.events and self._is_recorded:
                self._record_stream(member, target, relay)
            self._not_understood(relay.not_understood)
        if not relay.complete:
            early = f"the backend {member.backend.api_base} ended its stream early"
            if not relay.unchanged or not relay.events:
                raise UpstreamError(502, early, "stream_cut")
            # The body is whole: the agent's client decides what an end without a last event means.
            record.error, record.error_type = early, "stream_cut"
        if relay.assembler.error is not None:
            record.error, record.error_type = relay.assembler.error, "backend_error"
        rest = self._call_relay(relay.close, member)
        if record.error is None:
            self._keep_answer()
        await self._store_span(response.status)
        await self._send_headers(response.status, response.headers)
        await self._send({"type": "http.response.body", "body": rest})

    def _call_relay(self, call: Callable[[], T], member: Member) -> T:
        try:
            return call()
        except MALFORMED as error:
            raise UpstreamError(
                502,
                f"the backend {member.backend.api_base} sent a broken stream: {error!s:.200}",
                "backend_garbage",
            ) from None

    def _record_stream(self, member: Member, target: Protocol, relay: StreamRelay) -> None:
        """Keep what a stream said until its end, or until it broke."""
        try:
            self._record_response(member, target, relay.assembler.result())
        except MALFORMED as error:
            self._not_understood([f"the response: {type(error).__name__}: {error!s:.200}"])

    def _record_response(self, member: Member, target: Protocol, answer: Json) -> None:
        """Keep the response for the span, in the shape of chat."""
        record = self._record
        record.end_version = member.version
        found = get_protocol(target).recorded_response(answer)
        choices: Any = found.get("choices")
        # A copy, since extra fields are stripped from the response in place.
        copies = [dict(choice) for choice in choices or ()] if isinstance(choices, list) else []
        record.response = {**found, "choices": copies}
        if target != self._protocol:
            record.lost = sorted({*record.lost, *lost_in_response(target, self._protocol, answer)})

    async def _send_upstream_error(self, error: UpstreamError) -> None:
        """Send the backend's error in the agent's protocol."""
        if not isinstance(error, BackendRefusal):
            await super()._send_upstream_error(error)
            return
        if error.said is not None and error.protocol != self._protocol:
            body = dumps(error_body(self._protocol, error.status, error.said, error.code))
        else:
            body = translate_error(error.protocol, self._protocol, error.status, error.body)
        self._record.error = error.said or body[:2000].decode("utf-8", "replace")
        self._record.error_type = error.code
        # To an agent of the backend's protocol, an error within status 200 goes as it came.
        status = error.http_status if error.protocol == self._protocol else error.status
        await self._store_span(status)
        headers = error.headers
        if body is not error.body:
            headers = [JSON, *((k, v) for k, v in headers if k != b"content-type")]
        await self._send_response(status, body, headers)
