"""Compares the index of packed tokens with a linear search."""

from array import array

import pytest
from hypothesis import given, settings, strategies as st

from agl_adapters import PrefixIndex, common_prefix

# Few tokens, so that sequences have common prefixes; of two sizes and signs, so that bytes differ.
TOKENS = st.lists(st.sampled_from([0, 1, 255, 256, 70_000, -1]), max_size=5)


def packed(tokens: list[int]) -> bytes:
    return array("q", tokens).tobytes()


@settings(max_examples=300)
@given(st.lists(TOKENS, max_size=12), st.lists(st.integers(0, 11), max_size=4), TOKENS)
def test_searches_find_the_same_as_a_linear_search(sequences, removed, wanted):
    index = PrefixIndex()
    held: dict[int, bytes] = {}
    for number, tokens in enumerate(sequences):
        held[number] = packed(tokens)
        index.add(number, held[number])
    for number in set(removed) & set(held):
        index.remove(number, held.pop(number))
    prompt = packed(wanted)
    begun = [(len(one), number) for number, one in held.items() if prompt.startswith(one)]
    assert index.longest_in(prompt) == (max(begun)[1] if begun else None)
    assert len(index) == len(held)
    if held:
        shared = [(common_prefix(one, prompt), number) for number, one in held.items()]
        assert index.nearest_to(prompt) == max(shared)[1]


def test_an_empty_index_has_no_matches():
    index = PrefixIndex()
    assert index.longest_in(packed([1])) is None
    with pytest.raises(ValueError, match="no sequences"):
        index.nearest_to(packed([1]))
    with pytest.raises(ValueError, match="not in list"):
        index.remove(0, packed([1]))
