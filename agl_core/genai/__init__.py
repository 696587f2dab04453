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

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
