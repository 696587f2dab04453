"""LLM proxies that are wrong in one way each."""

from __future__ import annotations

import asyncio
import json

from agl_core.errors import StoreUnavailableError
from agl_core.store import decode_spans, encode_span
from agl_proxy_direct import DirectProxy, ProxyApp
from agl_store_kit import LightningStoreThreaded


class Base(DirectProxy):
    """The direct proxy, with hooks between it and its agents, its backends and its store.

    A wrong proxy replaces the hook for what it does wrong.
    """

    CAUGHT_BY = ""

    def sends(self, scope, message):
        """Change an ASGI message to the agent; None leaves it out."""
        return message

    def receives(self, scope, message):
        """Change an ASGI message from the agent."""
        return message

    def stores(self, span):
        """Change a span; None leaves it out."""
        return span

    async def start(self) -> None:
        proxy = self

        class Wrapped(ProxyApp):
            async def __call__(self, scope, receive, send):
                async def received():
                    return proxy.receives(scope, await receive())

                async def sent(message):
                    message = proxy.sends(scope, message)
                    if message is not None:
                        await send(message)

                headers = scope.get("headers", ())
                scope = {**scope, "headers": proxy.hears(headers)} if headers else scope
                await super().__call__(scope, received, sent)

        if type(self).stores is not Base.stores and self._store is not None:
            self._store = Changed(self._store, self.stores)
        await super().start()
        assert self._app is not None
        self._app.__class__ = Wrapped

    def hears(self, headers):
        """Change the headers of a request."""
        return headers


class Changed(LightningStoreThreaded):
    """Stores spans that ``change`` makes of those that it gets."""

    def __init__(self, store, change):
        super().__init__(store)
        self.change = change

    async def add_encoded_spans(self, spans):
        changed = [self.change(span) for span in decode_spans(spans)]
        await super().add_encoded_spans([encode_span(span) for span in changed if span])
        return list(spans)


def replaced(message, *pairs):
    """Return a message whose body has other texts of equal length."""
    body = message.get("body", b"")
    for old, new in pairs:
        assert len(old) == len(new)
        body = body.replace(old, new)
    return {**message, "body": body} if "body" in message else message


def without(span, *names):
    """Return a span without the attributes whose keys contain one of the names."""
    kept = {k: v for k, v in span.attributes.items() if not any(name in k for name in names)}
    return span.model_copy(update={"attributes": kept})


def with_attributes(span, **attributes):
    changed = {key.replace("__", "."): value for key, value in attributes.items()}
    return span.model_copy(update={"attributes": {**span.attributes, **changed}})


# -- streams and errors --------------------------------------------------------------------------


class DropsTheLastChunk(Base):
    CAUGHT_BY = "test_a_call_passes_whole_and_is_stored"

    def sends(self, scope, message):
        return {**message, "body": b""} if b"[DONE]" in message.get("body", b"") else message


class CollectsTheStream(Base):
    CAUGHT_BY = "test_a_stream_reaches_the_agent_without_delay"
    kept = b""

    def sends(self, scope, message):
        if message["type"] != "http.response.body":
            return message
        self.kept += message.get("body", b"")
        if message.get("more_body"):
            return None
        whole, self.kept = self.kept, b""
        return {**message, "body": whole}


class CollectsTheStreamAfterItsStart(CollectsTheStream):
    """Holds back what follows the first chunk, which has no text."""

    started = False

    def sends(self, scope, message):
        if message.get("body") and not self.started:
            self.started = True
            return message
        return super().sends(scope, message)


def turning(failures, status):
    """Return a hook that gives responses with certain statuses another one."""

    def sends(self, scope, message):
        wrong = message["type"] == "http.response.start" and message["status"] in failures
        return {**message, "status": status} if wrong else message

    return sends


class TurnsErrorsInto500(Base):
    CAUGHT_BY = "test_the_backends_error_is_the_agents"
    sends = turning(range(400, 600), 500)


class SaysThatGarbageIsFine(Base):
    CAUGHT_BY = "test_garbage_is_an_error"
    sends = turning(range(500, 600), 200)


class AnswersUnknownModelsWith400(Base):
    CAUGHT_BY = "test_an_unknown_model_is_the_agents_mistake"
    sends = turning([404], 400)


class FailsForOddAnswers(Base):
    CAUGHT_BY = "test_an_odd_answer_is_stored"
    sends = turning([200, 502], 500)


class KeepsTheBackendsAdvice(Base):
    CAUGHT_BY = "test_a_busy_backends_advice_reaches_the_agent"

    def sends(self, scope, message):
        headers = [h for h in message.get("headers", ()) if h[0] != b"retry-after"]
        return {**message, "headers": headers} if "headers" in message else message


class CompletesBrokenStreams(Base):
    CAUGHT_BY = "test_a_stream_that_breaks_off_does_not_look_complete"

    def sends(self, scope, message):
        end = message["type"] == "http.response.body" and not message.get("more_body")
        done = b"data: [DONE]\n\n"
        return {**message, "body": done} if end and b'"error"' in message["body"] else message


class LosesTheErrorsMessage(Base):
    CAUGHT_BY = "test_a_stream_that_breaks_off_does_not_look_complete"

    def sends(self, scope, message):
        broken = b'data: {"error"' in message.get("body", b"")
        return replaced(message, (b'"message"', b'"massage"')) if broken else message


class HidesErrorsOfStreams(Base):
    CAUGHT_BY = "test_an_error_event_is_the_error_of_the_call"

    def stores(self, span):
        fine = span.status.model_copy(update={"status_code": "OK"})
        return span.model_copy(update={"status": fine})


class NamesNoOddEvents(Base):
    CAUGHT_BY = "test_an_odd_event_reaches_the_agent_and_is_named"

    def stores(self, span):
        return without(span, "not_understood")


class WantsAReasonForEveryEnd(Base):
    CAUGHT_BY = "test_the_backend_says_when_a_stream_ends"

    def sends(self, scope, message):
        return replaced(message, (b"[DONE]", b"[LOST]"))


class RoundsLargeNumbers(Base):
    CAUGHT_BY = "test_odd_parameters_are_the_backends_to_judge"

    def receives(self, scope, message):
        return replaced(message, (str(2**70).encode(), str(2**70 - 4).encode()))


class DropsTheFirstPiece(Base):
    CAUGHT_BY = "test_a_stream_may_have_comments_and_other_line_ends"

    def sends(self, scope, message):
        return replaced(message, (b'"half"', b'""    '))


# -- models and control --------------------------------------------------------------------------


class ForgetsTheVersion(Base):
    CAUGHT_BY = "test_spans_carry_the_models_version"

    def set_model_version(self, version, model=None):
        return None


class StoresTheVersionOfTheEnd(Base):
    CAUGHT_BY = "test_a_call_keeps_the_version_that_it_began_with"

    def stores(self, span):
        return with_attributes(span, agentlightning__model_version=self._versions[None])


class NeverPauses(Base):
    CAUGHT_BY = "test_a_paused_proxy_holds_new_calls"

    async def pause(self):
        return None


class TakesNewModelsAtTheNextStart(Base):
    CAUGHT_BY = "test_a_new_model_list_counts_at_once"

    def update_model_list(self, model_list):
        self._model_list = [dict(item) for item in model_list]


class CutsCallsWhenModelsChange(Base):
    CAUGHT_BY = "test_calls_in_flight_finish_on_their_backend"

    def update_model_list(self, model_list):
        super().update_model_list(model_list)
        if self._app is not None:
            self._call_in_loop(self.cut)

    def cut(self, app):
        for exchange in app._exchanges:
            exchange.abort("new models")


class SharesItsModelList(Base):
    CAUGHT_BY = "test_the_model_list_is_a_copy"

    def get_model_list(self):
        return self._model_list


class DrainsByPausing(Base):
    CAUGHT_BY = "test_draining_waits_for_calls_in_flight"

    async def drain(self, deadline=60.0, *, abort=False):
        await self.pause()
        return 0


class DrainsWithoutPausing(Base):
    CAUGHT_BY = "test_a_drained_proxy_is_paused"

    async def drain(self, deadline=60.0, *, abort=False):
        try:
            return await super().drain(deadline, abort=abort)
        finally:
            await self.resume()


class SaysNothingToAbortedCalls(Base):
    CAUGHT_BY = "test_an_aborted_call_says_so"

    def stores(self, span):
        return without(span, "error.type")


class HoldsBackWhoWaitsBehind(Base):
    CAUGHT_BY = "test_a_call_that_was_held_may_be_given_up"

    async def resume(self):
        self._call_in_loop(lambda app: setattr(app.balancer, "_paused", False))


class FilesCallsElsewhere(Base):
    CAUGHT_BY = "test_calls_of_many_attempts_do_not_mix"
    first = None

    def as_resource(self, rollout_id=None, attempt_id=None, *args, **kwargs):
        self.first = self.first or (rollout_id, attempt_id)
        return super().as_resource(*self.first, *args, **kwargs)


class ServesTheFirstModelOnly(Base):
    CAUGHT_BY = "test_each_model_is_served_by_its_own_backend"

    def receives(self, scope, message):
        return replaced(message, (b'"model": "n"', b'"model": "m"'))


class GivesOneVersionToAll(Base):
    CAUGHT_BY = "test_the_version_of_one_model_is_its_own"

    def set_model_version(self, version, model=None):
        super().set_model_version(version)


class WaitsInsteadOfAborting(Base):
    CAUGHT_BY = "test_a_drain_may_abort_calls"

    async def drain(self, deadline=60.0, *, abort=False):
        return await super().drain(deadline)


class KeepsItsFirstStore(Base):
    CAUGHT_BY = "test_spans_go_to_the_store_that_was_set_last"

    def set_store(self, store):
        if self.get_store() is None:
            super().set_store(store)


class TakesAnotherPort(Base):
    CAUGHT_BY = "test_a_taken_port_is_refused"

    def __init__(self, **options):
        super().__init__(**{**options, "port": None})


class HasAnAddressWithoutItsVersion(Base):
    CAUGHT_BY = "test_the_address_is_that_of_an_openai_server"

    @property
    def base_url(self):
        return super().base_url.removesuffix("/v1") + "/v2"


class StopsWithoutAWord(Base):
    CAUGHT_BY = "test_a_stop_without_a_start_warns"

    async def stop(self):
        if self.is_running():
            await super().stop()


class ForgetsItsVersionInCopies(Base):
    CAUGHT_BY = "test_a_copy_of_a_running_proxy_does_not_run"

    def __getstate__(self):
        return {**super().__getstate__(), "_versions": {}}


class PausesInItsSleep(Base):
    CAUGHT_BY = "test_a_stopped_proxy_takes_settings_but_no_orders"

    async def pause(self):
        if self.is_running():
            await super().pause()


class ObeysItsOwnThreadOnly(Base):
    CAUGHT_BY = "test_it_may_be_controlled_from_any_thread"

    def update_model_list(self, model_list):
        backends = self.upstream_spec.parse(model_list)
        if _has_loop() and self._started_in is not _loop():
            raise RuntimeError("another loop started this proxy")
        super().update_model_list(model_list)
        self._backends = backends

    async def start(self):
        self._started_in = _loop()
        await super().start()


def _loop():
    return asyncio.get_running_loop()


def _has_loop():
    try:
        return bool(_loop())
    except RuntimeError:
        return False


# -- stores --------------------------------------------------------------------------------------


class AnswersBeforeTheSpanIsStored(Base):
    CAUGHT_BY = "test_a_slow_store_has_the_span_before_the_agent_its_answer"

    def __init__(self, **options):
        super().__init__(**options, flush_timeout=0.001)


class Forgetful(LightningStoreThreaded):
    """Reports spans as stored that it could not store."""

    async def add_encoded_spans(self, spans):
        try:
            return await super().add_encoded_spans(spans)
        except StoreUnavailableError:
            return list(spans)

    async def get_many_span_sequence_ids(self, rollout_attempt_ids):
        try:
            return await super().get_many_span_sequence_ids(rollout_attempt_ids)
        except StoreUnavailableError:
            return [1] * len(rollout_attempt_ids)


class LosesSpansWhileTheStoreIsGone(Base):
    CAUGHT_BY = "test_spans_outlast_a_store_that_is_gone_for_a_while"

    async def start(self):
        self._store = self._store and Forgetful(self._store)
        await super().start()


class WaitingStore(LightningStoreThreaded):
    """Repeats a batch until the store takes it, as a proxy with one queue does."""

    async def add_encoded_spans(self, spans):
        while True:
            try:
                return await super().add_encoded_spans(spans)
            except RuntimeError:
                await asyncio.sleep(0.05)

    async def get_many_span_sequence_ids(self, rollout_attempt_ids):
        while True:
            try:
                return await super().get_many_span_sequence_ids(rollout_attempt_ids)
            except RuntimeError:
                await asyncio.sleep(0.05)


class WaitsForEachBatch(Base):
    CAUGHT_BY = "test_one_rollout_whose_spans_fail_holds_up_no_other"

    def __init__(self, **options):
        super().__init__(**options, flush_timeout=0.5, stop_timeout=0.5)

    async def start(self):
        self._store = self._store and WaitingStore(self._store)
        await super().start()


class WaitsForUnknownAttempts(Base):
    CAUGHT_BY = "test_spans_of_an_unknown_attempt_hold_up_no_other"

    def __init__(self, **options):
        super().__init__(**options, flush_timeout=0.5, stop_timeout=0.5)

    async def start(self):
        self._store = self._store and WaitingForAttempts(self._store)
        await super().start()


class WaitingForAttempts(WaitingStore):
    async def get_many_span_sequence_ids(self, rollout_attempt_ids):
        while any(rollout_id == "ro-unknown" for rollout_id, _ in rollout_attempt_ids):
            await asyncio.sleep(0.05)
        return await super().get_many_span_sequence_ids(rollout_attempt_ids)


class DropsWhatWaitsAtItsStop(Base):
    CAUGHT_BY = "test_a_stop_stores_the_spans_that_wait"

    def __init__(self, **options):
        super().__init__(**options, flush_timeout=0.001, stop_timeout=0.001)


class WaitsForUnknownAttemptsAtItsStop(WaitsForUnknownAttempts):
    CAUGHT_BY = "test_a_stop_ends_when_the_store_refuses"

    def __init__(self, **options):
        Base.__init__(self, **options, flush_timeout=0.5, stop_timeout=6)


# -- what an answer holds ------------------------------------------------------------------------


class RenamesToolCalls(Base):
    CAUGHT_BY = "test_tool_calls_pass_and_are_stored"

    def sends(self, scope, message):
        return replaced(message, (b'"tool_calls":', b'"tool_usage":'))


class SaysThatAllIsSaid(Base):
    CAUGHT_BY = "test_the_finish_reason_passes_and_is_stored"

    def sends(self, scope, message):
        return replaced(message, (b'"length"', b'"stop"  '))


class AsksForOneChoice(Base):
    CAUGHT_BY = "test_two_choices_pass_and_are_stored"

    def receives(self, scope, message):
        return replaced(message, (b'"n": 2', b'"n": 1'))


class DropsTheSeed(Base):
    CAUGHT_BY = "test_a_request_reaches_the_backend_unchanged"

    def receives(self, scope, message):
        return replaced(message, (b'"seed": 7', b'"sead": 7'))


class ListsNoModels(Base):
    CAUGHT_BY = "test_the_models_are_listed"

    def sends(self, scope, message):
        listed = message["type"] == "http.response.start" and scope["method"] == "GET"
        return {**message, "status": 404} if listed else message


class ListsModelsWithoutTheirKind(Base):
    CAUGHT_BY = "test_a_model_is_described_by_name"

    def sends(self, scope, message):
        return replaced(message, (b'"owned_by"', b'"maker_of"'))


class GivesNoIdsToWhoAsks(Base):
    CAUGHT_BY = "test_an_agent_gets_the_ids_and_logprobs_that_it_asked_for"

    def sends(self, scope, message):
        return replaced(message, (b'"token_ids"', b'"xoken_ids"'))


class SendsUsageToAll(Base):
    CAUGHT_BY = "test_a_stream_has_the_usage_that_was_asked_for"

    def receives(self, scope, message):
        body = message.get("body", b"")
        if not body.startswith(b"{"):
            return message
        asked = {**json.loads(body), "stream_options": {"include_usage": True}}
        return {**message, "body": json.dumps(asked).encode()}

    def hears(self, headers):
        return [header for header in headers if header[0] != b"content-length"]


class CutsLargeAnswers(Base):
    CAUGHT_BY = "test_a_large_call_is_stored_whole"

    def stores(self, span):
        long = str(span.attributes.get("gen_ai.output.messages", ""))
        return with_attributes(span, gen_ai__output__messages=long[:100_000])


# -- what a span holds ---------------------------------------------------------------------------


class StoresNoUsage(Base):
    CAUGHT_BY = "test_the_usage_is_stored"

    def stores(self, span):
        return without(span, "usage")


class StoresTheFirstFinishReason(Base):
    CAUGHT_BY = "test_two_choices_pass_and_are_stored"

    def stores(self, span):
        reasons = span.attributes.get("gen_ai.response.finish_reasons", [])[:1]
        return with_attributes(span, gen_ai__response__finish_reasons=reasons)


class StoresNoParameters(Base):
    CAUGHT_BY = "test_a_span_has_the_attributes_of_its_call"

    def stores(self, span):
        return without(span, "temperature")


class EndsSpansAtTheirStart(Base):
    CAUGHT_BY = "test_a_span_lasts_as_long_as_its_call"

    def stores(self, span):
        return span.model_copy(update={"end_time": span.start_time})


class PutsAllCallsIntoOneTrace(Base):
    CAUGHT_BY = "test_each_span_has_ids_of_its_own"

    def stores(self, span):
        return span.model_copy(update={"trace_id": "1" * 32})


class BeginsATraceOfItsOwn(Base):
    CAUGHT_BY = "test_a_call_continues_the_trace_of_its_agent"

    def hears(self, headers):
        return [header for header in headers if header[0] != b"traceparent"]


class NumbersSpansByTheirEnd(Base):
    CAUGHT_BY = "test_spans_are_numbered_in_the_order_of_the_calls"
    number = 0

    def stores(self, span):
        self.number += 1
        return span.model_copy(update={"sequence_id": self.number})


class ForgetsBrokenAnswers(Base):
    CAUGHT_BY = "test_the_span_of_a_broken_stream_has_what_arrived"

    def stores(self, span):
        return without(span, "output") if span.status.status_code == "ERROR" else span


class KeepsTheErrorsNameToItself(Base):
    CAUGHT_BY = "test_the_span_of_a_failed_call_names_the_error"

    def stores(self, span):
        return without(span, "error.type")


class LosesSpansWithSurrogates(Base):
    CAUGHT_BY = "test_lone_surrogates_lose_no_span"

    def stores(self, span):
        return None if "half a smile" in str(span.attributes) else span


class TakesEmbeddingsForChats(Base):
    CAUGHT_BY = "test_embeddings_are_recorded_as_such"

    def stores(self, span):
        return with_attributes(span, gen_ai__operation__name="chat")


class StoresNoIdsOfCompletions(Base):
    CAUGHT_BY = "test_completions_have_token_ids"

    def stores(self, span):
        return without(span, "token_ids")


class StoresTheIdsOfAllChoicesAsOne(Base):
    CAUGHT_BY = "test_each_choice_has_ids_of_its_own"

    def stores(self, span):
        of_all = [i for k, v in span.attributes.items() if "response_token_ids" in k for i in v]
        return with_attributes(span, response_token_ids=of_all)


class StoresTheIdsOfTextsOnly(Base):
    CAUGHT_BY = "test_the_tokens_of_tool_calls_are_among_the_ids"

    def stores(self, span):
        of_text = span.attributes["response_token_ids"][:3]  # "Let me see."
        return with_attributes(span, response_token_ids=of_text)


# -- protocols -----------------------------------------------------------------------------------


class SaysEndTurnAlways(Base):
    CAUGHT_BY = "test_an_answer_is_translated_and_stored"

    def sends(self, scope, message):
        return replaced(message, (b'"tool_use"', b'"end_turn"'))


class AsksForNoIdsOfMessages(Base):
    CAUGHT_BY = "test_a_translated_call_has_token_ids"

    def stores(self, span):
        return without(span, "response_token_ids")


class TranslatesWhatNeedsNoTranslation(Base):
    CAUGHT_BY = "test_a_backend_of_the_same_protocol_gets_the_call_as_it_is"

    def receives(self, scope, message):
        return replaced(message, (b'"metadata"', b'"metabase"'))


class NamesEveryErrorAlike(Base):
    CAUGHT_BY = "test_errors_have_the_names_of_the_protocol"

    def sends(self, scope, message):
        return replaced(message, (b'"not_found_error"', b'"invalid_request"'))


class SpeaksOpenAIToAll(Base):
    CAUGHT_BY = "test_the_proxys_own_errors_are_in_the_agents_protocol"

    def sends(self, scope, message):
        return replaced(message, (b'{"type":"error",', b'{"kind":"error",'))


class CompletesTranslatedStreams(Base):
    CAUGHT_BY = "test_a_stream_that_breaks_says_so_in_its_protocol"

    def sends(self, scope, message):
        return replaced(message, (b"api_error", b"api_thing"))


# -- backends ------------------------------------------------------------------------------------


def changing(change):
    """Return a constructor of proxies whose model list is changed."""

    def __init__(self, *, model_list=(), **options):
        entries = [change(json.loads(json.dumps(entry))) for entry in model_list or ()]
        Base.__init__(self, model_list=entries, **options)

    return __init__


def _without_extra_headers(entry):
    entry["litellm_params"].pop("extra_headers", None)
    return entry


def _without_login(entry):
    params = entry["litellm_params"]
    params["api_base"] = params["api_base"].replace("user:a%20secret@", "")
    return entry


class SendsNoExtraHeaders(Base):
    CAUGHT_BY = "test_a_backend_gets_what_its_entry_says"
    __init__ = changing(_without_extra_headers)


class RepeatsTheKey(Base):
    CAUGHT_BY = "test_credentials_stay_where_they_belong"

    def sends(self, scope, message):
        body = message.get("body", b"").replace(b"[redacted]", b"sk-of-the-operator-0123")
        if message["type"] == "http.response.start":
            headers = [h for h in message["headers"] if h[0] != b"content-length"]
            return {**message, "headers": headers}
        return {**message, "body": body}


class ForgetsTheLogin(Base):
    CAUGHT_BY = "test_a_login_in_a_url_is_a_header"
    __init__ = changing(_without_login)


class AcceptsAnyEntry(Base):
    CAUGHT_BY = "test_an_invalid_entry_is_refused"

    def __init__(self, *, model_list=(), **options):
        super().__init__(model_list=list(model_list)[:1], **options)


class AsksForAModelAlways(Base):
    CAUGHT_BY = "test_a_call_without_a_model_is_of_the_only_one"

    def receives(self, scope, message):
        return replaced(message, (b'"model": null', b'"model": "?" '))


class KeepsItsFirstTimeouts(Base):
    CAUGHT_BY = "test_a_new_timeout_counts_at_once"

    def update_model_list(self, model_list):
        """Keep the backends: only their names are compared."""


class TriesOnce(Base):
    CAUGHT_BY = "test_a_call_that_fails_at_one_backend_is_tried_at_another"

    def __init__(self, **options):
        super().__init__(**options, num_retries=0)


class TriesOnceWhatIsGone(TriesOnce):
    CAUGHT_BY = "test_a_backend_that_is_gone_is_replaced"


class TriesBrokenConnectionsOnce(TriesOnce):
    CAUGHT_BY = "test_a_broken_connection_is_tried_again"


class GivesUpAtTheFirstError(TriesOnce):
    CAUGHT_BY = "test_a_call_that_no_backend_serves_ends_with_the_error"


class RepeatsEveryRequest(Base):
    """Sends each request to a second backend as well."""

    async def start(self):
        await super().start()
        app = self._app
        assert app is not None
        upstream, send = app.upstream, app.upstream.send

        async def twice(request):
            first = await send(request)
            await first.close()
            return await send(request)

        upstream.send = twice


class RepeatsWrongRequests(RepeatsEveryRequest):
    CAUGHT_BY = "test_a_request_that_is_wrong_is_tried_once"


class RepeatsStreams(RepeatsEveryRequest):
    CAUGHT_BY = "test_a_stream_that_has_begun_is_not_repeated"


class UsesTheFirstBackendOnly(Base):
    CAUGHT_BY = "test_backends_share_the_calls"

    def __init__(self, *, model_list=(), **options):
        super().__init__(model_list=list(model_list)[:1], **options)


# -- other calls ---------------------------------------------------------------------------------


class StoresNoOtherCalls(Base):
    CAUGHT_BY = "test_another_call_passes_and_is_stored"

    def stores(self, span):
        return span if "openai.chat.completion" in span.name else None


class AnswersOtherMethodsWith404(Base):
    CAUGHT_BY = "test_another_method_passes"
    sends = turning([200], 404)


class LetsOtherCallsNameAnyModel(Base):
    CAUGHT_BY = "test_a_call_that_names_no_model_goes_to_the_only_one"
    sends = turning([400, 404], 200)


class HidesFailuresOfOtherCalls(Base):
    CAUGHT_BY = "test_a_call_that_fails_is_an_error"
    sends = turning(range(500, 600), 200)
