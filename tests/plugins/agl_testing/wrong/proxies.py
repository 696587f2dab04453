"""LLM proxies that are wrong in one way each."""

from __future__ import annotations

from agl_core.errors import StoreUnavailableError
from agl_core.store import LightningStoreThreaded, decode_spans, encode_span
from agl_proxy_direct import DirectProxy, ProxyApp


class Base(DirectProxy):
    CAUGHT_BY = ""

    async def start(self) -> None:
        await super().start()
        assert self._app is not None
        self._app.__class__ = type("WrappedApp", (type(self._app),), self.overrides())

    def overrides(self) -> dict:
        """Replace attributes of the app that serves."""
        return {}


def passing(change):
    """Make an app whose messages to the client go through ``change``."""

    async def call(self, scope, receive, send):
        async def changed(message):
            message = change(scope, message)
            if message is not None:
                await send(message)

        await ProxyApp.__call__(self, scope, receive, changed)

    return {"__call__": call}


class DropsTheLastChunk(Base):
    CAUGHT_BY = "test_a_call_passes_whole_and_is_stored"

    def overrides(self):
        def drop(scope, message):
            body = message.get("body", b"")
            return {**message, "body": b""} if b"[DONE]" in body else message

        return passing(drop)


class CollectsTheStream(Base):
    CAUGHT_BY = "test_a_stream_reaches_the_agent_without_delay"

    def overrides(self):
        kept: list[bytes] = []

        def collect(scope, message):
            if message["type"] != "http.response.body":
                return message
            kept.append(message.get("body", b""))
            if message.get("more_body"):
                return None
            whole = b"".join(kept)
            kept.clear()
            return {**message, "body": whole}

        return passing(collect)


class TurnsErrorsInto500(Base):
    CAUGHT_BY = "test_the_backends_error_is_the_agents"

    def overrides(self):
        def hide(scope, message):
            failed = message["type"] == "http.response.start" and message["status"] >= 400
            return {**message, "status": 500} if failed else message

        return passing(hide)


class ForgetsTheVersion(Base):
    CAUGHT_BY = "test_spans_carry_the_models_version"

    def set_model_version(self, version, model=None):
        return None


class NeverPauses(Base):
    CAUGHT_BY = "test_a_paused_proxy_holds_new_calls"

    async def pause(self):
        return None


class TakesNewModelsAtTheNextStart(Base):
    CAUGHT_BY = "test_a_new_model_list_counts_at_once"

    def update_model_list(self, model_list):
        self._model_list = [dict(item) for item in model_list]


class DrainsByPausing(Base):
    CAUGHT_BY = "test_draining_waits_for_calls_in_flight"

    async def drain(self, deadline=60.0, *, abort=False):
        await self.pause()
        return 0


class FilesCallsElsewhere(Base):
    CAUGHT_BY = "test_calls_of_many_attempts_do_not_mix"
    first = None

    def as_resource(self, rollout_id=None, attempt_id=None, *args, **kwargs):
        self.first = self.first or (rollout_id, attempt_id)
        return super().as_resource(*self.first, *args, **kwargs)


class KeepsTheBackendsAdvice(Base):
    CAUGHT_BY = "test_a_busy_backends_advice_reaches_the_agent"

    def overrides(self):
        def forget(scope, message):
            headers = [h for h in message.get("headers", ()) if h[0] != b"retry-after"]
            return {**message, "headers": headers} if "headers" in message else message

        return passing(forget)


class SaysThatGarbageIsFine(Base):
    CAUGHT_BY = "test_garbage_is_an_error"

    def overrides(self):
        def beautify(scope, message):
            failed = message["type"] == "http.response.start" and message["status"] >= 500
            return {**message, "status": 200} if failed else message

        return passing(beautify)


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


# -- what an answer holds ------------------------------------------------------------------------


def replacing(old: bytes, new: bytes):
    """Make an app that writes ``new`` for ``old`` in its answers; both have one length."""
    assert len(old) == len(new)

    def change(scope, message):
        body = message.get("body", b"")
        return {**message, "body": body.replace(old, new)} if old in body else message

    return passing(change)


def asking(old: bytes, new: bytes):
    """Make an app that reads ``new`` for ``old`` in requests; both have one length."""
    assert len(old) == len(new)

    async def call(self, scope, receive, send):
        async def changed():
            message = await receive()
            body = message.get("body", b"")
            return {**message, "body": body.replace(old, new)} if old in body else message

        await ProxyApp.__call__(self, scope, changed, send)

    return {"__call__": call}


class RenamesToolCalls(Base):
    CAUGHT_BY = "test_tool_calls_pass_and_are_stored"

    def overrides(self):
        return replacing(b'"tool_calls":', b'"tool_usage":')


class SaysThatAllIsSaid(Base):
    CAUGHT_BY = "test_the_finish_reason_passes_and_is_stored"

    def overrides(self):
        return replacing(b'"length"', b'"stop"  ')


class AsksForOneChoice(Base):
    CAUGHT_BY = "test_two_choices_pass_and_are_stored"

    def overrides(self):
        return asking(b'"n": 2', b'"n": 1')


class DropsTheSeed(Base):
    CAUGHT_BY = "test_a_request_reaches_the_backend_unchanged"

    def overrides(self):
        return asking(b'"seed": 7', b'"sead": 7')


class ListsNoModels(Base):
    CAUGHT_BY = "test_the_models_are_listed"

    def overrides(self):
        def hide(scope, message):
            listed = message["type"] == "http.response.start" and scope["method"] == "GET"
            return {**message, "status": 404} if listed else message

        return passing(hide)


class Stripping(LightningStoreThreaded):
    """Stores spans without some of their attributes."""

    def __init__(self, store, strip):
        super().__init__(store)
        self.strip = strip

    async def add_encoded_spans(self, spans):
        stripped = []
        for span in decode_spans(spans):
            attributes = self.strip(dict(span.attributes))
            stripped.append(encode_span(span.model_copy(update={"attributes": attributes})))
        await super().add_encoded_spans(stripped)
        return list(spans)


class Strips(Base):
    async def start(self):
        self.set_store(Stripping(self.get_store(), self.strip))
        await super().start()

    def strip(self, attributes):
        return attributes


class StoresNoUsage(Strips):
    CAUGHT_BY = "test_the_usage_is_stored"

    def strip(self, attributes):
        return {key: value for key, value in attributes.items() if "usage" not in key}


class StoresTheFirstFinishReason(Strips):
    CAUGHT_BY = "test_two_choices_pass_and_are_stored"

    def strip(self, attributes):
        key = "gen_ai.response.finish_reasons"
        return {**attributes, key: attributes.get(key, [])[:1]}


class ServesTheFirstModelOnly(Base):
    CAUGHT_BY = "test_each_model_is_served_by_its_own_backend"

    def overrides(self):
        return asking(b'"model": "n"', b'"model": "m"')


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
