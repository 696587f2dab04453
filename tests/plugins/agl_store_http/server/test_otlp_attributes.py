"""Attributes of OTLP spans: whatever a pair of bytes is, it is read as protobuf reads it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings, strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from agl_core.otel import sanitize_attribute_value
from agl_store_http.server.bodies.weighing import Pauses
from agl_store_http.server.otlp import wire
from agl_store_http.server.otlp.lists import FlatList, NestedValues, TooManyValues


def read_attributes(pairs: list[bytes], **options: Any) -> dict[str, Any]:
    return wire.read_attributes(pairs, NestedValues(), **options)


def pair_of(key: str, value: Any) -> bytes:
    pair = KeyValue(key=key)
    if isinstance(value, bool):
        pair.value.bool_value = value
    elif isinstance(value, int):
        pair.value.int_value = value
    elif isinstance(value, float):
        pair.value.double_value = value
    elif value is not None:
        pair.value.string_value = value
    return pair.SerializeToString()


def as_protobuf_reads(pairs: list[bytes]) -> dict[str, Any] | None:
    """Return the attributes; None if a pair is malformed."""
    found: dict[str, Any] = {}
    try:
        for each in pairs:
            pair = KeyValue.FromString(each)
            kind = pair.value.WhichOneof("value")
            if kind is not None:
                found[pair.key] = getattr(pair.value, kind)
    except DecodeError:
        return None
    return found


def as_read(pairs: list[bytes]) -> dict[str, Any] | None:
    try:
        found = read_attributes(pairs)
        return {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}
    except (DecodeError, UnicodeDecodeError):
        return None


@settings(max_examples=300, deadline=None)
@given(
    attributes=st.dictionaries(
        st.text(max_size=200),
        st.text(max_size=300) | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.none(),
        max_size=8,
    )
)
def test_attributes_are_read_as_protobuf_reads_them(attributes):
    """Twice each, because a name is remembered from its first pair on."""
    pairs = [pair_of(key, value) for key, value in attributes.items()]
    expected = {key: value for key, value in attributes.items() if value is not None}
    for _ in range(2):
        assert as_read(pairs) == expected


@pytest.mark.parametrize("size", [0, 1, 117, 118, 119, 120, 127, 128, 129, 16_377, 16_384, 70_000])
def test_strings_of_every_length_are_read(size):
    for _ in range(2):
        (text,) = read_attributes([pair_of("k", "x" * size)]).values()
        assert len(text) == size


NAMES = st.sampled_from(["a", "b", "model", "gen_ai.usage.input_tokens"])
VALUES = (
    st.text(max_size=140)
    | st.sampled_from(["x" * 127, "x" * 128, "x" * 126])
    | st.integers(-3, 300)
    | st.booleans()
    | st.sampled_from([0.0, -1.5, 1e300])
)
PAIRS = st.builds(pair_of, NAMES, VALUES)
KEYS = st.builds(lambda name: KeyValue(key=name).SerializeToString(), NAMES)
ODD_PAIRS = (
    st.builds(lambda pair, key: pair + key, PAIRS, KEYS)  # the last key counts
    | st.builds(lambda key, pair: key + pair, KEYS, PAIRS)
    | st.builds(lambda pair, key: pair.removeprefix(key) + key, PAIRS, KEYS)
    | st.builds(lambda pair, size: pair[:size], PAIRS, st.integers(0, 140))
    | st.builds(lambda pair, more: pair + more, PAIRS, st.binary(max_size=4))
    | st.builds(lambda key, more: key + more, KEYS, st.binary(max_size=140))
    | st.binary(max_size=8)
)


@settings(max_examples=500, deadline=None)
@given(pairs=st.lists(PAIRS | ODD_PAIRS, max_size=8), data=st.data())
def test_pairs_in_any_order_and_form_are_read_as_protobuf_reads_them(pairs, data):
    """Names and values are remembered from one span to the next."""
    for _ in range(2):
        assert as_read(pairs) == as_protobuf_reads(pairs)
        pairs = data.draw(st.permutations(pairs))


def test_a_name_is_not_guessed_for_the_pair_of_another():
    first = [pair_of("one", "x"), pair_of("two", "y")]
    second = [pair_of("one", "x"), pair_of("six", "y"), pair_of("two", 2), pair_of("six", "z")]
    for pairs in (first, first, second, first, second):
        assert as_read(pairs) == as_protobuf_reads(pairs)


def test_a_client_that_sends_ever_new_sizes_fills_no_memory(monkeypatch):
    monkeypatch.setattr(wire._Heads, "stored", wire._MAX_HEADS - 3)
    for size in range(20, 40):
        assert as_read([pair_of("only here", "x" * size)]) == {"only here": "x" * size}
    name = wire._names[b"\x0a\x09only here"]
    assert len(name.heads) <= 3
    assert wire._Heads.stored == wire._MAX_HEADS


# -- lists and maps --------------------------------------------------------------------------------


def any_value(value: Any) -> AnyValue:
    message = AnyValue()
    if isinstance(value, list):
        message.array_value.SetInParent()
        message.array_value.values.extend(map(any_value, value))
    elif isinstance(value, dict):
        message.kvlist_value.SetInParent()
        for key, item in value.items():
            message.kvlist_value.values.add(key=key, value=any_value(item))
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int):
        message.int_value = value
    elif isinstance(value, float):
        message.double_value = value
    elif value is not None:
        message.string_value = value
    return message


NUMBERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SAME = (
    st.lists(NUMBERS) | st.lists(st.booleans()) | st.lists(FLOATS) | st.lists(st.text(max_size=200))
)
MIXED = st.lists(st.none() | st.booleans() | NUMBERS | st.text(max_size=5), max_size=20)
TREES = st.recursive(MIXED, lambda inner: st.lists(inner, max_size=3), max_leaves=8)


@settings(max_examples=300, deadline=None)
@given(value=SAME | MIXED | TREES | st.dictionaries(st.text(max_size=9), TREES, max_size=3))
def test_lists_are_read_alike_with_an_object_per_value_and_without(value):
    pair = KeyValue(key="k", value=any_value(value)).SerializeToString()
    expected = sanitize_attribute_value(value)
    assert read_attributes([pair]) == {"k": expected}
    found = read_attributes([pair], flat_lists=True)["k"]
    if isinstance(found, FlatList):
        found = json.loads(asyncio.run(found.to_json(Pauses())))
    elif isinstance(value, list) and value and not isinstance(value[0], (list, type(None))):
        assert len(set(map(type, value))) > 1
    assert found == expected


@pytest.mark.parametrize(
    "value", [[None] * 50_000, [[]] * 50_000, {"k": [1, "a"] * 25_000}, ["ab"] * 300_000]
)
def test_values_that_become_objects_are_counted_before(value):
    pair = KeyValue(key="k", value=any_value(value)).SerializeToString()
    with pytest.raises(TooManyValues):
        read_attributes([pair], flat_lists=True)
