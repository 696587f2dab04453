"""Attributes that are lists or maps.

An empty value in a list takes 2 bytes, and 100 as an object. So lists of numbers and texts are read
without an object per value, and the values of all others are counted before they are read.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from opentelemetry.proto.common.v1.common_pb2 import ArrayValue, KeyValueList
from pydantic_core import to_json

from agl_core.otel import sanitize_attribute_value
from agl_store_kit import Pauses

__all__ = ["FlatList", "NestedValues", "TooManyValues", "read_varint"]

_MAX_NESTED: Final = 40_000
"""Each costs 1 µs or more; a conversation of 1,000 messages has some thousand. A list of one type
counts as one, whatever its length."""
_MAX_TEXTS: Final = 200_000
"""Each is a Python object of 50 bytes or more, whatever its length."""
_MAX_LIST_BYTES: Final = 16 * 1024 * 1024
"""A million log-probabilities take 11 MB."""
_SLICE: Final = 8192
"""Numbers that are written at a time, in about 1 ms."""
_KINDS: Final = {
    "string_value": (1, FieldDescriptorProto.TYPE_BYTES),
    "bool_value": (2, FieldDescriptorProto.TYPE_BOOL),
    "int_value": (3, FieldDescriptorProto.TYPE_INT64),
    "double_value": (4, FieldDescriptorProto.TYPE_DOUBLE),
}
"""Fields of an AnyValue that a list of one type holds: number and type."""


def _flat_message() -> Any:
    """Return a message that reads an encoded ArrayValue as one list per type of value.

    Where a field that is no list occurs several times, protobuf joins its messages, and the lists
    in them (https://protobuf.dev/programming-guides/encoding/#last-one-wins). So ``values``, which
    is a list of messages with a number each, is read as one message with a list of numbers.
    """
    file = FileDescriptorProto(name="agl/flat.proto", package="agl", syntax="proto2")
    lists, array = file.message_type.add(name="Lists"), file.message_type.add(name="Array")
    for name, (number, kind) in _KINDS.items():
        repeated = FieldDescriptorProto.LABEL_REPEATED
        lists.field.add(name=name, number=number, type=kind, label=repeated)
    array.field.add(
        name="values",
        number=1,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".agl.Lists",
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("agl.Array"))


_Flat: Final = _flat_message()


class TooManyValues(ValueError):
    """A request holds more values than the server takes."""


class FlatList:
    """A list of one type, without an object per value."""

    __slots__ = ("_values",)

    def __init__(self, values: Any) -> None:
        self._values = values

    async def to_json(self, pauses: Pauses) -> bytes:
        """Return the list as JSON."""
        values, parts = self._values, list[bytes]()
        for start in range(0, len(values), _SLICE):
            parts.append(to_json(values[start : start + _SLICE], inf_nan_mode="strings")[1:-1])
            await pauses.take()
        return b"[%b]" % b",".join(parts)


def _head_size(text: bytes) -> int:
    """Return the number of bytes before the AnyValue of a text: a tag and a length."""
    size = len(text)
    inner = 1 + (max(size.bit_length(), 1) + 6) // 7 + size
    return 1 + (inner.bit_length() + 6) // 7


class NestedValues:
    """Reads lists and maps, as many values as one request may hold."""

    def __init__(self) -> None:
        self._values_left = _MAX_NESTED
        self._texts_left = _MAX_TEXTS

    def read_flat_list(self, encoded: bytes) -> FlatList | None:
        """Return a list of one type, or None for any other.

        Raises:
            TooManyValues: It is too long, or the request holds too many nested values.
        """
        if len(encoded) > _MAX_LIST_BYTES:
            raise TooManyValues(f"a list may take {_MAX_LIST_BYTES} bytes")
        flat = _Flat.FromString(encoded)
        lists = flat.values
        filled = [values for name in _KINDS if (values := getattr(lists, name))]
        if len(filled) != 1:
            return None
        heads = 2 * len(filled[0])
        if lists.string_value:
            self._texts_left -= len(lists.string_value)
            if self._texts_left < 0:
                raise TooManyValues(f"the lists of a request may hold {_MAX_TEXTS} texts")
            heads = sum(map(_head_size, lists.string_value))
        if lists.ByteSize() + heads != len(encoded):
            return None  # a value of another type, or an empty one, would be missing
        self._take(1)
        return FlatList(filled[0])

    def read(self, kind: str, encoded: bytes) -> Any:
        """Return the value of an attribute: a list of one primitive type, or else a text.

        Args:
            kind: The field of AnyValue that holds it.
            encoded: Its message; for ``bytes_value`` the bytes.

        Raises:
            TooManyValues: The request holds too many nested values.
        """
        if kind == "bytes_value":
            return encoded.hex()
        self._take(_count_values(kind, encoded, self._values_left))
        message = ArrayValue if kind == "array_value" else KeyValueList
        values = message.FromString(encoded).values
        # Spans hold primitives and lists of one primitive type; anything else becomes text.
        plain = _plain_map(values) if kind == "kvlist_value" else [_plain(item) for item in values]
        return sanitize_attribute_value(plain)

    def _take(self, values: int) -> None:
        self._values_left -= values
        if self._values_left < 0:
            raise TooManyValues(f"lists and maps of a request may hold {_MAX_NESTED} values")


_MESSAGES: Final = {
    "array_value": {1: "value"},
    "kvlist_value": {1: "pair"},
    "pair": {2: "value"},
    "value": {5: "array_value", 6: "kvlist_value"},
}
"""Which fields of a message are messages: by number, opentelemetry.proto.common.v1."""


def _count_values(kind: str, encoded: bytes, limit: int) -> int:
    """Return how many fields a list or map holds at any depth, counting to about a limit."""
    count = 0
    parts = [(0, len(encoded), kind)]
    while parts and count <= limit:
        at, end, message = parts.pop()
        messages = _MESSAGES[message]
        while at < end and count <= limit:
            tag, at = read_varint(encoded, at)
            wire = tag & 7
            count += 1
            if wire == 2:
                size, at = read_varint(encoded, at)
                field = messages.get(tag >> 3)
                if field is not None and size > 1:
                    parts.append((at, min(at + size, end), field))
                at += size
            elif wire == 0:
                _, at = read_varint(encoded, at)
            elif wire in (1, 5):
                at += 8 if wire == 1 else 4
            else:
                break
    return count


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends (https://protobuf.dev/programming-guides/encoding/)."""
    number = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            break
        shift += 7
    return number, at


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _plain_map(value.kvlist_value.values)
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return None if kind is None else getattr(value, kind)


def _plain_map(pairs: Any) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}
