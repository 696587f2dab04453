from __future__ import annotations

import logging
import math
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from agl_core.otel import (
    check_attributes_sanity,
    filter_and_unflatten_attributes,
    filter_attributes,
    flatten_attributes,
    format_exception_attributes,
    full_qualified_name,
    sanitize_attribute_value,
    sanitize_attributes,
    unflatten_attributes,
)

# -- nesting ----------------------------------------------------------------------------------


def test_nested_values_get_dotted_keys():
    nested = {"a": {"b": 1, "c": [{"d": "x"}, {"d": "y"}]}, "e": [1, 2], "f": None}
    assert flatten_attributes(nested) == {
        "a.b": 1,
        "a.c.0.d": "x",
        "a.c.1.d": "y",
        "e": [1, 2],
        "f": None,
    }


def test_leaf_lists_expand_when_asked():
    assert flatten_attributes({"e": ["x", "y"]}, expand_leaf_lists=True) == {"e.0": "x", "e.1": "y"}


def test_a_list_at_the_root_always_expands():
    assert flatten_attributes([1, 2]) == {"0": 1, "1": 2}


def test_mixed_lists_expand_with_a_warning(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert flatten_attributes({"a": [1, 2.0]}) == {"a.0": 1, "a.1": 2.0}
    assert "float, int" in caplog.text


def test_empty_containers_vanish_and_leaves_stay():
    leaf = (1, "x")
    assert flatten_attributes({"a": {}, "b": [], "c": leaf}) == {"c": leaf}
    assert flatten_attributes(5) == {"": 5}


def test_a_key_that_is_not_a_string_is_rejected_with_its_path():
    with pytest.raises(ValueError, match=r"not 1 under 'a\.b'"):
        flatten_attributes({"a": {"b": {1: 2}}})


def test_only_a_gapless_count_from_zero_makes_a_list():
    assert unflatten_attributes({"a.0": 1, "a.1": 2}) == {"a": [1, 2]}
    assert unflatten_attributes({"a.1": 1, "a.0": 2}) == {"a": [2, 1]}
    assert unflatten_attributes({"a.1": 1, "a.2": 2}) == {"a": {"1": 1, "2": 2}}
    assert unflatten_attributes({"a.00": 1}) == {"a": {"00": 1}}
    assert unflatten_attributes({"0": 1}) == [1]


@pytest.mark.parametrize("flat", [{"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}])
def test_of_a_key_and_a_key_below_it_the_lower_one_is_kept(flat: dict[str, int]):
    assert unflatten_attributes(flat) == {"a": {"b": 2}}


def test_a_dict_that_is_a_leaf_is_not_taken_apart():
    assert unflatten_attributes({"a": {"0": 1}}) == {"a": {"0": 1}}


keys = st.text("abcé_- 0", min_size=1, max_size=4).filter(lambda key: not key.isdigit())
primitives = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
leaves = primitives | st.one_of(
    *(
        st.lists(one, min_size=1, max_size=3)
        for one in (st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
    )
)
structures = st.recursive(
    leaves,
    lambda inner: (
        st.dictionaries(keys, inner, min_size=1, max_size=3)
        | st.lists(st.dictionaries(keys, inner, min_size=1, max_size=3), min_size=1, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(keys, structures, max_size=3))
def test_flattening_is_undone(nested: dict[str, object]):
    assert unflatten_attributes(flatten_attributes(nested)) == nested


@given(st.dictionaries(keys, structures, max_size=3))
def test_expanding_every_list_is_undone(nested: dict[str, object]):
    assert unflatten_attributes(flatten_attributes(nested, expand_leaf_lists=True)) == nested


# -- prefixes ---------------------------------------------------------------------------------


def test_a_prefix_ends_at_a_dot():
    attributes = {"a": 0, "a.b": 1, "ab": 2, "a.c.d": 3}
    assert filter_attributes(attributes, "a") == {"a": 0, "a.b": 1, "a.c.d": 3}


def test_what_lies_below_a_prefix_is_nested():
    attributes = {"in.messages.0.role": "user", "in.model": "m", "other": 1}
    assert filter_and_unflatten_attributes(attributes, "in") == {
        "messages": [{"role": "user"}],
        "model": "m",
    }
    assert filter_and_unflatten_attributes(attributes, "none") == {}
    with pytest.raises(ValueError, match="'other'"):
        filter_and_unflatten_attributes(attributes, "other")


# -- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "sane"),
    [
        ("x", "x"),
        (True, True),
        (1.5, 1.5),
        ([True, 2], [1, 2]),
        ([True, False], [True, False]),
        ([1, 2.5], [1.0, 2.5]),
        (("a", "b"), ["a", "b"]),
        ([], []),
        ([1, "two"], '[1, "two"]'),
        ({"k": [1]}, '{"k": [1]}'),
        (None, "null"),
        (Fraction(1, 2), 0.5),
        (ValueError("é"), '"é"'),
    ],
)
def test_any_value_becomes_one_an_attribute_can_hold(value: object, sane: object):
    result = sanitize_attribute_value(value)
    assert result == sane
    assert type(result) is type(sane)


def test_without_force_only_json_is_taken():
    assert sanitize_attribute_value({"a": None}, force=False) == '{"a": null}'
    with pytest.raises(ValueError, match="object has no JSON form"):
        sanitize_attribute_value(object(), force=False)
    with pytest.raises(ValueError, match=r"'the\.key'"):
        sanitize_attributes({"fine": 1, "the.key": object()}, force=False)


def test_a_value_within_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="list has no JSON form"):
        sanitize_attribute_value(loop)


def test_sane_attributes_pass_the_check():
    check_attributes_sanity({"a": "x", "b": True, "c": 1, "d": math.nan, "e": ["x"], "f": []})


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({1: "x"}, "must be a string, not 1"),
        ({"k": None}, "'k'.*not NoneType"),
        ({"k": {}}, "'k'.*not dict"),
        ({"k": [1, 2.0]}, "'k'.*not float, int"),
        ({"k": [None]}, "'k'.*NoneType"),
    ],
)
def test_what_cannot_be_stored_fails_the_check(attributes: dict[object, object], message: str):
    with pytest.raises(ValueError, match=message):
        check_attributes_sanity(attributes)


# -- exceptions and names ---------------------------------------------------------------------


def test_an_exception_is_described():
    assert format_exception_attributes(KeyError("k")) == {
        "exception.type": "KeyError",
        "exception.message": "'k'",
        "exception.escaped": True,
    }
    try:
        raise KeyError("k")
    except KeyError as error:
        stack = format_exception_attributes(error)["exception.stacktrace"]
    assert isinstance(stack, str)
    assert stack.startswith("Traceback")
    assert "test_an_exception_is_described" in stack


def test_builtins_need_no_module():
    assert full_qualified_name(dict) == "dict"
    assert full_qualified_name(Fraction) == "fractions.Fraction"
