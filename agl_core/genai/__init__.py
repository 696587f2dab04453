"""Model protocols: what the APIs of models speak, for tracers, adapters, proxies and servers.

Each protocol is a folder (:mod:`~agl_core.genai.chat`, :mod:`~agl_core.genai.completions`,
:mod:`~agl_core.genai.responses`, :mod:`~agl_core.genai.messages`,
:mod:`~agl_core.genai.embeddings`) behind one object, :class:`ModelProtocol`: its path, its
requests and responses as chat, its streams, errors, records and extra fields. A protocol is added
as a folder and a name in :data:`Protocol`; other code asks :func:`get_protocol`.

Shared by all protocols:

* wire format: JSON and server-sent events as bytes (:func:`loads`, :func:`dumps`,
  :class:`SseSplitter`);
* translation between protocols, through chat (:func:`translate_request`,
  :func:`stream_translator`);
* attributes of spans in OpenTelemetry's GenAI conventions (:func:`request_attributes`,
  :func:`response_attributes`).

The package handles HTTP bodies and paths; it does not use stores, tracers or OpenTelemetry spans.
"""

from typing import TYPE_CHECKING

from agl_core.genai._errors import (
    MALFORMED,
    CodecError,
)
from agl_core.genai._extra import (
    NO_EXTRA_FIELDS,
    ExtraFields,
)
from agl_core.genai._protocols import (
    PROTOCOLS,
    ModelProtocol,
    Protocol,
    Route,
    get_protocol,
    parse_path,
)
from agl_core.genai._wire import (
    DONE,
    Json,
    ServerSentEvent,
    SseSplitter,
    dumps,
    event_bytes,
    loads,
    named_event,
)
from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_core.genai._attributes import (
        input_messages,
        message_parts,
        output_messages,
        request_attributes,
        response_attributes,
        usage_attributes,
        without_secrets,
    )
    from agl_core.genai._streams import (
        Assembler,
        StreamTranslator,
        error_of,
    )
    from agl_core.genai._translation import (
        can_translate,
        lost_in_request,
        lost_in_response,
        response_events,
        stream_translator,
        translate_request,
        translate_response,
    )
    from agl_core.genai._turns import fold_after_results

__all__ = [
    "DONE",
    "MALFORMED",
    "NO_EXTRA_FIELDS",
    "PROTOCOLS",
    "Assembler",
    "CodecError",
    "ExtraFields",
    "Json",
    "ModelProtocol",
    "Protocol",
    "Route",
    "ServerSentEvent",
    "SseSplitter",
    "StreamTranslator",
    "can_translate",
    "dumps",
    "error_of",
    "event_bytes",
    "fold_after_results",
    "get_protocol",
    "input_messages",
    "loads",
    "lost_in_request",
    "lost_in_response",
    "message_parts",
    "named_event",
    "output_messages",
    "parse_path",
    "request_attributes",
    "response_attributes",
    "response_events",
    "stream_translator",
    "translate_request",
    "translate_response",
    "usage_attributes",
    "without_secrets",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Assembler": "agl_core.genai._streams",
        "StreamTranslator": "agl_core.genai._streams",
        "can_translate": "agl_core.genai._translation",
        "error_of": "agl_core.genai._streams",
        "fold_after_results": "agl_core.genai._turns",
        "input_messages": "agl_core.genai._attributes",
        "lost_in_request": "agl_core.genai._translation",
        "lost_in_response": "agl_core.genai._translation",
        "message_parts": "agl_core.genai._attributes",
        "output_messages": "agl_core.genai._attributes",
        "request_attributes": "agl_core.genai._attributes",
        "response_attributes": "agl_core.genai._attributes",
        "response_events": "agl_core.genai._translation",
        "stream_translator": "agl_core.genai._translation",
        "translate_request": "agl_core.genai._translation",
        "translate_response": "agl_core.genai._translation",
        "usage_attributes": "agl_core.genai._attributes",
        "without_secrets": "agl_core.genai._attributes",
    },
)
