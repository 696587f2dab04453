"""Export requests as protobuf messages whose attributes are still bytes.

Most of a request is string attributes. Reading one through protobuf's Python objects costs four
objects and a decoded string; reading it from its bytes costs two slices. So the official schema is
loaded a second time with ``bytes`` where it has ``KeyValue``: on the wire both are the same, a
length and that many bytes (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from agl_store_http.server.otlp.lists import NestedValues, read_varint

__all__ = ["TraceRequest", "count_spans", "read_attributes"]

_MAX_CACHED: Final = 4096
"""Longest text, and most names, that are remembered: an agent has some hundred names."""
_MAX_HEADS: Final = 65_536
"""Beginnings that are remembered, 10 MB at most."""
_KEY_TAG: Final = 0x0A
"""Field 1, length-delimited: the key of a KeyValue, and also the string of an AnyValue."""
_VALUE_TAG: Final = 0x12
"""Field 2, length-delimited: the value of a KeyValue."""


def _message_classes() -> tuple[Any, Any]:
    pool = descriptor_pool.DescriptorPool()
    _add_file(pool, trace_service_pb2.DESCRIPTOR)
    official = trace_service_pb2.ExportTraceServiceRequest.DESCRIPTOR, KeyValue.DESCRIPTOR
    found = [pool.FindMessageTypeByName(each.full_name) for each in official]
    request, pair = map(message_factory.GetMessageClass, found)
    return request, pair


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
            if field.name in ("attributes", "array_value", "kvlist_value"):
                field.type = FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
    pool.AddSerializedFile(file.SerializeToString())


TraceRequest, _KeyValue = _message_classes()
"""ExportTraceServiceRequest; every field ``attributes`` is a list of encoded KeyValues, whose lists
and maps are encoded, too. And such a KeyValue."""


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
            tag, at = request[at], at + 1
            if tag > 0x7F:  # rare: a call for every tag takes 15 % of the time
                tag, at = read_varint(request, at - 1)
            kind = tag & 7
            if kind == 2:
                size, at = read_varint(request, at)
                if depth == 3:
                    count += 1
                elif tag >> 3 == _PATH_TO_SPANS[depth]:
                    count += 1
                    if depth < deepest:
                        parts.append((at, min(at + size, end), depth + 1))
                at += size
            elif kind == 0:
                _, at = read_varint(request, at)
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                break
    return count


# -- attributes ------------------------------------------------------------------------------------


def read_attributes(
    pairs: Iterable[bytes], nested: NestedValues, *, flat_lists: bool = False
) -> dict[str, Any]:
    """Return attributes by name; strings are UTF-8 bytes, not checked yet.

    The spans of an agent have the same names in the same order. So each name is guessed from the
    one before it, which takes half the time of finding it.

    Args:
        pairs: Encoded KeyValues.
        nested: How many more values of lists and maps the request may hold.
        flat_lists: Return lists of one type as :class:`~agl_store_http.server.otlp.lists.FlatList`.

    Raises:
        DecodeError: A pair is not an encoded KeyValue.
        TooManyValues: The request holds too many nested values.
    """
    attributes: dict[str, Any] = {}
    name = _no_name
    for pair in pairs:
        guess = name.next
        text = pair.removeprefix(guess.heads[len(pair)])
        if text is pair:
            found = _read_pair(pair, attributes, nested, flat_lists)
            if found is not None:
                name.next = name = found
        else:
            attributes[guess.key] = text
            name = guess
    return attributes


class _Name:
    """The name of an attribute, and the one that followed it last."""

    __slots__ = ("heads", "key", "next")

    def __init__(self, key: str) -> None:
        self.key = key
        encoded = key.encode()
        self.heads = _Heads(b"%c%c%b" % (_KEY_TAG, len(encoded), encoded))
        self.next = self


class _Heads(dict[int, bytes]):
    """The bytes before the text of a string value, by the size of the pair.

    The sizes of pair and key determine them.
    """

    __slots__ = ("prefix",)
    stored: ClassVar[int] = 0
    """Of all names together: a client chooses names and sizes."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix

    def __missing__(self, size: int) -> bytes:
        after_key = _string_heads[size - len(self.prefix)]
        # No pair starts with more bytes than it has.
        head = self.prefix + after_key if after_key else bytes(size + 1)
        if size < _MAX_CACHED and _Heads.stored < _MAX_HEADS:
            _Heads.stored += 1
            self[size] = head
        return head


class _StringHeads(dict[int, bytes]):
    """The bytes between a key and a text, by the size of all that follows the key; may be empty."""

    def __missing__(self, size: int) -> bytes:
        head = _string_head(size)
        if len(self) < _MAX_CACHED:
            self[size] = head
        return head


def _string_head(size: int) -> bytes:
    value_size = _content_size(size)
    text_size = None if value_size is None else _content_size(value_size)
    if value_size is None or text_size is None:
        return b""  # no string value has this size
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
_names: Final[dict[bytes, _Name]] = {}
"""Names by their encoding in a pair, tag and length included."""
_no_name: Final = _Name("")
"""Comes before the first attribute."""
_scalars: Final[dict[bytes, bool | int | float]] = {}
"""Values that are not strings by what follows the key; many spans hold the same small numbers."""


def _read_pair(
    encoded: bytes, attributes: dict[str, Any], nested: NestedValues, flat_lists: bool
) -> _Name | None:
    """Read a pair whose name was not guessed, or that holds no string; return its known name."""
    key_end = encoded[1] + 2 if len(encoded) > 1 else 0
    name = _names.get(encoded[:key_end])
    if name is None:
        name = _new_name(encoded[:key_end])
    if name is not None:
        text = encoded.removeprefix(name.heads[len(encoded)])
        value = _scalars.get(encoded[key_end:]) if text is encoded else text
        if value is not None:
            attributes[name.key] = value
            return name
    pair = _KeyValue.FromString(encoded)
    key: str = pair.key
    value = pair.value
    kind = value.WhichOneof("value")
    if kind == "string_value":
        attributes[key] = value.string_value
    elif kind in ("int_value", "double_value", "bool_value"):
        attributes[key] = scalar = getattr(value, kind)
        rest = encoded[key_end:]
        # If one field follows the key, it is the value, whatever the key is.
        if name and rest[1] == len(rest) - 2 and len(_scalars) < _MAX_CACHED:
            _scalars[rest] = scalar
    elif kind is not None:
        content = getattr(value, kind)
        found = nested.read_flat_list(content) if kind == "array_value" and flat_lists else None
        attributes[key] = nested.read(kind, content) if found is None else found
    return name


def _new_name(prefix: bytes) -> _Name | None:
    """Remember the name that a pair begins with; None if it is no name, or too many are known.

    Args:
        prefix: Tag, length in one byte, and name.
    """
    if len(_names) >= _MAX_CACHED or len(prefix) < 2 or prefix[0] != _KEY_TAG:
        return None
    if prefix[1] != len(prefix) - 2 or prefix[1] >= 0x80:
        return None
    try:
        name = _Name(prefix[2:].decode())
    except UnicodeDecodeError:
        return None
    _names[prefix] = name
    return name
