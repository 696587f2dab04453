"""Export requests as protobuf messages whose attributes are still bytes.

Most of a request is string attributes. Reading one through protobuf's Python objects costs four
objects and a decoded string; reading it from its bytes costs two slices. So the official schema is
loaded a second time with ``bytes`` where it has ``KeyValue``: on the wire both are the same, a
length and that many bytes (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from agl_core.otel import sanitize_attribute_value

__all__ = ["TraceRequest", "count_spans", "read_attributes"]

_MAX_CACHED: Final = 4096
_KEY_TAG: Final = 0x0A
"""Field 1, length-delimited: the key of a KeyValue, and also the string of an AnyValue."""
_VALUE_TAG: Final = 0x12
"""Field 2, length-delimited: the value of a KeyValue."""


def _message_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    _add_file(pool, trace_service_pb2.DESCRIPTOR)
    name = trace_service_pb2.ExportTraceServiceRequest.DESCRIPTOR.full_name
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _add_file(pool: Any, descriptor: Any) -> None:
    for needed in descriptor.dependencies:
        _add_file(pool, needed)
    file = FileDescriptorProto()
    descriptor.CopyToProto(file)
    messages = list(file.message_type)
    while messages:
        message = messages.pop()
        messages += message.nested_type
        for field in message.field:
            if field.name == "attributes":
                field.type = FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
    pool.AddSerializedFile(file.SerializeToString())


TraceRequest: Final = _message_class()
"""ExportTraceServiceRequest; every field ``attributes`` is a list of encoded KeyValues."""


_PATH_TO_SPANS: Final = (1, 2, 2)
"""Field numbers of resource_spans, scope_spans and spans; each is a field of the one before."""


def count_spans(request: bytes, limit: int, *, with_fields: bool = False) -> int:
    """Return how many spans an encoded request holds, counting to about ``limit``.

    An empty span takes 2 bytes, and as an object 100 times as much; so they are counted before the
    request is parsed. Malformed bytes count as far as they can be read.

    Args:
        request: An encoded export request.
        limit: Where to stop.
        with_fields: Count the attributes, events, links and other texts of spans instead.
    """
    count, deepest = 0, 2 + with_fields
    parts = [(0, len(request), 0)]
    while parts and count <= limit:
        at, end, depth = parts.pop()
        while at < end and count <= limit:
            tag, at = _read_varint(request, at)
            kind = tag & 7
            if kind == 2:
                size, at = _read_varint(request, at)
                if depth == 3:
                    count += 1
                elif tag >> 3 == _PATH_TO_SPANS[depth]:
                    count += 1
                    if depth < deepest:
                        parts.append((at, min(at + size, end), depth + 1))
                at += size
            elif kind == 0:
                _, at = _read_varint(request, at)
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                break
    return count


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            break
        shift += 7
    return number, at


def read_attributes(pairs: Iterable[bytes]) -> dict[bytes, Any]:
    """Return attributes by their UTF-8 names; strings are UTF-8 bytes, not checked yet.

    Raises:
        DecodeError: A pair is not an encoded KeyValue.
    """
    attributes: dict[bytes, Any] = {}
    heads, keys = _string_heads, _keys
    for pair in pairs:
        try:
            # The size after the key determines the bytes between it and a string.
            prefix, _, text = pair.partition(heads[len(pair) - pair[1]])
            attributes[keys[prefix]] = text
        except (IndexError, KeyError):
            _read_pair(pair, attributes)
    return attributes


class _StringHeads(dict[int, bytes]):
    """The bytes between a key and the text of a string value.

    By the size of the pair less the size of its key: the key's own tag and length are two bytes.
    """

    def __missing__(self, size: int) -> bytes:
        if size <= 2:
            raise KeyError(size)  # nothing follows the key
        head = _string_head(size - 2)
        if len(self) < _MAX_CACHED:
            self[size] = head
        return head


def _string_head(size: int) -> bytes:
    value_size, text_size = _content_size(size), 0
    if value_size is not None:
        text_size = _content_size(value_size)
    if value_size is None or text_size is None:
        return b"\0"  # no tag of protobuf: no string value has this size
    return b"%c%b%c%b" % (_VALUE_TAG, _varint(value_size), _KEY_TAG, _varint(text_size))


def _content_size(size: int) -> int | None:
    """Return the size of what a field of ``size`` bytes holds after its tag and length."""
    for length_bytes in range(1, 6):
        content = size - 1 - length_bytes
        if content >= 0 and len(_varint(content)) == length_bytes:
            return content
    return None


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_string_heads: Final = _StringHeads()
_keys: Final[dict[bytes, bytes]] = {}
"""Attribute names by their encoding in a pair, tag and length included."""


# -- everything but strings with a known name ------------------------------------------------------


def _read_pair(encoded: bytes, attributes: dict[bytes, Any]) -> None:
    pair = KeyValue.FromString(encoded)
    key: bytes = pair.key.encode()
    value = pair.value
    kind = value.WhichOneof("value")
    if kind == "string_value" and len(key) < 0x80 and len(_keys) < _MAX_CACHED:
        _keys[b"%c%c%b" % (_KEY_TAG, len(key), key)] = key
    if kind in ("string_value", "int_value", "double_value", "bool_value"):
        attributes[key] = getattr(value, kind)
    elif kind is not None:
        # Spans hold primitives and lists of one primitive type; anything else becomes text.
        attributes[key] = sanitize_attribute_value(_plain(value))


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return None if kind is None else getattr(value, kind)
