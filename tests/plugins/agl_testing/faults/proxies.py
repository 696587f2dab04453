"""Faults of LLM proxies, by the hooks of the wrong proxies."""

from __future__ import annotations

import json
from typing import Any

from wrong.proxies import Base, replaced, turning, with_attributes, without

from agl_core.errors import ConfigError


class Proxy(Base):
    SUITE, FIXTURE = "ProxySuite", "make_proxy"
    FLAGS = ("streaming", "token_ids", "routes", "translation", "balancing", "passthrough")
    VALUE = "{fake}"
    CAUGHT_BY = ""


class ChecksItsEntriesAtTheStart(Proxy):
    """Refuses bad entries when it starts, which is right as well."""

    def __init__(self, **options: Any) -> None:
        self.refusal: ConfigError | None = None
        try:
            super().__init__(**options)
        except ConfigError as error:
            self.refusal = error
            super().__init__(**{**options, "model_list": []})

    async def start(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        await super().start()


GOOD = (Proxy, ChecksItsEntriesAtTheStart)


class StartsWithoutBadEntries(ChecksItsEntriesAtTheStart):
    """A bad entry of the model list is left out without a word."""

    CAUGHT_BY = "test_an_invalid_entry_is_refused"

    async def start(self) -> None:
        self.refusal = None
        await super().start()


def _cut(span: Any, longest: int) -> Any:
    changed = {k: v[:longest] if isinstance(v, str) else v for k, v in span.attributes.items()}
    return span.model_copy(update={"attributes": changed})


class StopsAtTenMegabytes(Proxy):
    """A request of more than 10 MB is cut off, so it is not JSON any more."""

    CAUGHT_BY = "test_a_request_of_twelve_megabytes_passes"

    held = 0

    def receives(self, scope, message):
        self.held += len(message.get("body", b""))
        if not message.get("more_body"):
            held, self.held = self.held, 0
            if held > 10_000_000:
                return {**message, "body": b"", "more_body": False}
        return message


class CutsStoredTexts(Proxy):
    """Spans have the first 65,535 characters of a text."""

    CAUGHT_BY = "test_a_large_call_is_stored_whole"

    def stores(self, span):
        return _cut(span, 65535)


class DropsLargeSpans(Proxy):
    """Calls of more than a megabyte are not stored."""

    CAUGHT_BY = "test_a_large_call_is_stored_whole"

    def stores(self, span):
        return span if sum(len(str(v)) for v in span.attributes.values()) < 2**20 else None


class StoresHalfOfALongStream(Proxy):
    """Of a long answer the span has the first 256 token ids."""

    CAUGHT_BY = "test_a_long_answer_has_all_its_ids"

    def stores(self, span):
        ids = span.attributes.get("response_token_ids")
        if isinstance(ids, list | tuple) and len(ids) > 256:
            return with_attributes(span, response_token_ids=list(ids)[:256])
        return span


class StoresAHundredCalls(Proxy):
    """After a hundred calls of an attempt nothing is stored."""

    CAUGHT_BY = "test_the_calls_of_a_long_attempt_are_all_stored"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: dict[str, int] = {}

    def stores(self, span):
        self.seen[span.attempt_id] = self.seen.get(span.attempt_id, 0) + 1
        return span if self.seen[span.attempt_id] <= 100 else None


class TurnsErrorsInto502(Proxy):
    """Whatever the backend refuses becomes a 502."""

    CAUGHT_BY = "test_the_backends_error_is_the_agents"

    sends = turning(range(400, 500), 502)


class TurnsBusyIntoFailed(Proxy):
    """429 of a busy backend becomes 500, so that clients do not wait."""

    CAUGHT_BY = "test_a_busy_backends_advice_reaches_the_agent"

    sends = turning([429], 500)


class TurnsErrorsIntoAnswers(Proxy):
    """An error of the backend is sent with the status 200."""

    CAUGHT_BY = "test_a_missing_backend_is_an_error"

    sends = turning(range(500, 600), 200)


class HidesErrorsInSpans(Proxy):
    """A failed call is stored as one that succeeded."""

    CAUGHT_BY = "test_an_error_event_is_the_error_of_the_call"

    def stores(self, span):
        fine = span.status.model_copy(update={"status_code": "OK", "description": None})
        return span.model_copy(update={"status": fine})


class StoresNoFailedCalls(Proxy):
    """A failed call is not stored."""

    CAUGHT_BY = "test_the_span_of_a_failed_call_names_the_error"

    def stores(self, span):
        return None if span.status.status_code == "ERROR" else span


class SortsTokenIds(Proxy):
    """Token ids are stored in ascending order."""

    CAUGHT_BY = "test_a_long_answer_has_all_its_ids"

    def stores(self, span):
        ids: Any = span.attributes.get("response_token_ids")
        return with_attributes(span, response_token_ids=sorted(ids)) if ids else span


class LosesLogprobs(Proxy):
    """Spans lack the log-probabilities."""

    CAUGHT_BY = "test_the_span_has_exact_ids_and_logprobs"

    def stores(self, span):
        return without(span, "logprobs")


class RenamesTheModel(Proxy):
    """The backend is asked for another model."""

    CAUGHT_BY = "test_a_span_has_the_attributes_of_its_call"

    def receives(self, scope, message):
        return replaced(message, (b'"temperature"', b'"temperatura"'))


class SendsUnicodeAsQuestionMarks(Proxy):
    """What is not ASCII reaches the backend as question marks."""

    CAUGHT_BY = "test_texts_of_any_language_pass_and_are_stored"

    def receives(self, scope, message):
        body = message.get("body")
        if not body:
            return message
        try:
            text = json.dumps(json.loads(body), ensure_ascii=False)
        except ValueError:
            return message
        plain = text.encode("ascii", "replace")
        return {**message, "body": plain + b" " * (len(body) - len(plain))}
