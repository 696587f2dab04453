"""Tests of the table of dialects, and of its reader."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_adapters import is_model_call, system_text
from agl_adapters.dialects import DIALECTS
from agl_adapters.literals import parse_json, parse_literal
from agl_adapters.model_call import ModelCall, at
from agl_adapters.vocabulary import Vocabulary, compile_fields, vocabulary
from agl_core.adapter import Dialect, Repair
from agl_core.otel._attributes import flatten_attributes

OUT = "agentlightning.operation.output"


def test_no_root_lies_below_another() -> None:
    # Otherwise an attribute would belong to two roots, and only one would be found.
    roots = {source.root for sources in vocabulary().fields.values() for source in sources}
    assert not [(a, b) for a in roots for b in roots if b.startswith(f"{a}.")]


def test_names_of_dialects_are_unique() -> None:
    assert len({row.name for row in DIALECTS}) == len(DIALECTS)


def test_a_path_that_two_dialects_have_is_tried_once() -> None:
    first = Dialect(name="first", model=("m", "n"))
    second = Dialect(name="second", model=("n", "o"))
    found = [(source.key, source.row.name) for source in compile_fields((first, second))["model"]]
    assert found == [("m", "first"), ("n", "first"), ("o", "second")]


@pytest.mark.parametrize(
    ("attributes", "ids"),
    [
        ({"response_token_ids": [1], f"{OUT}.response_token_ids.0": [2]}, [1]),
        ({f"{OUT}.response_token_ids.0": [2], f"{OUT}.choices.0.token_ids": [3]}, [2]),
        ({f"{OUT}.choices.0.token_ids": [3]}, [3]),
        ({f"{OUT}.choices": '[{"token_ids": [3]}]'}, [3]),
        ({f"{OUT}.choices.0.token_ids.0": 3, f"{OUT}.choices.0.token_ids.1": 4}, [3, 4]),
        ({f"{OUT}.choices.0.provider_specific_fields.token_ids": [4]}, [4]),
        ({"output.value": "{'choices': [{'token_ids': [5]}]}"}, [5]),
        ({"response_token_ids": (1, 2)}, [1, 2]),
        ({"response_token_ids": "[1, 2]"}, [1, 2]),
        ({"response_token_ids": []}, []),
        ({}, []),
    ],
)
def test_response_ids_are_found_wherever_they_are(
    attributes: dict[str, Any], ids: list[int]
) -> None:
    call = ModelCall(attributes)
    assert call.response_ids == ids
    assert call.problems == []


@pytest.mark.parametrize("value", [["1"], [1.5], [True], "[1,", "text", 3, [float("inf")], [[1]]])
def test_token_ids_that_are_not_integers_are_a_problem(value: Any) -> None:
    call = ModelCall({"prompt_token_ids": value})
    assert call.prompt_ids == []
    assert call.problems == [Repair.BAD_TOKEN_IDS]


def test_the_fields_around_the_tokens() -> None:
    legacy = ModelCall(
        {
            "gen_ai.response.id": "r",
            "gen_ai.request.model": "m",
            "gen_ai.response.finish_reasons": ["length"],
            "agentlightning.model_version": 7,
        }
    )
    assert (legacy.response_id, legacy.model, legacy.finish_reason) == ("r", "m", "length")
    assert legacy.model_version == "7"
    assert legacy.logprobs is None
    inference = ModelCall({"llm.model_name": "m", "llm.invocation_parameters": '{"top_p": 1}'})
    assert inference.model == "m"
    assert inference.request == {"top_p": 1}
    assert inference.response == {}
    weave = ModelCall({f"{OUT}.choices.0.logprobs.content": '[{"logprob": -1.0}]'})
    assert weave.logprobs == [{"logprob": -1.0}]


def test_a_dialect_of_its_own_reads_its_spans() -> None:
    row = Dialect(
        name="theirs",
        marks=("theirs.call",),
        response_id=("theirs.call/id",),
        prompt_ids=("theirs.call/input/tokens",),
    )
    attributes = {"theirs.call": '{"id": "x", "input": {"tokens": [1, 2]}}'}
    call = ModelCall(attributes, compile_fields((row,)))
    assert Vocabulary((row,)).is_model_call(attributes)
    assert not is_model_call(attributes)
    assert call.response_id == "x"
    assert call.prompt_ids == [1, 2]
    assert call.response_ids == []


def test_what_a_model_call_is() -> None:
    assert is_model_call({"gen_ai.response.id": "r"})
    assert is_model_call({"gen_ai.response.id": "r", "gen_ai.operation.name": "chat"})
    assert not is_model_call({"gen_ai.response.id": "r", "gen_ai.operation.name": "embeddings"})
    assert is_model_call({"llm.model_name": "m", "openinference.span.kind": "LLM"})
    assert not is_model_call({"llm.model_name": "m", "openinference.span.kind": "CHAIN"})
    assert not is_model_call({"gen_ai.request.model": "m"})


def test_keys_are_split_at_their_root() -> None:
    split_root = vocabulary().split_root
    assert split_root("gen_ai.prompt.0.role") == ("gen_ai.prompt", "0.role")
    assert split_root("gen_ai.prompt") is None
    assert split_root("gen_ai.prompts.0") is None
    assert split_root("output.value.choices.0.index") == ("output.value", "choices.0.index")


def test_a_path_that_does_not_exist_gives_none() -> None:
    value = {"a": [{"b": 1}], "text": '{"c": [2]}'}
    assert at(value, ("a", "0", "b")) == 1
    assert at(value, ("text", "c", "0")) == 2
    for steps in (("x",), ("a", "1"), ("a", "b"), ("a", "0", "b", "c")):
        assert at(value, steps) is None


@given(st.text(alphabet="[]{}(),:'\"0123456789.ab \\", max_size=40))
def test_parsing_never_fails(text: str) -> None:
    parse_literal(text)
    parse_json(text)


def test_parsing_knows_json_and_python() -> None:
    assert parse_literal(' {"a": null}') == {"a": None}
    assert parse_literal("{'a': None, 'b': (1, 2)}") == {"a": None, "b": (1, 2)}
    assert parse_literal("[1, 2") == "[1, 2"
    assert parse_literal("7") == "7"
    deep = "[" * 100_000
    assert parse_literal(deep) == deep
    # Text of a model may be Python, and stays what it is where a tool writes JSON.
    assert parse_json('{"a": null}') == {"a": None}
    for python in ("{'a': None}", "(1, 2)", deep):
        assert parse_json(python) == python


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ('[{"type": "text", "content": "be"}, {"type": "blob"}, "brief"]', "be\nbrief"),
        ("be brief", "be brief"),
        ("[]", ""),
        (None, ""),
    ],
)
def test_instructions_beside_the_messages_are_one_text(system: str | None, text: str) -> None:
    given = {} if system is None else {"gen_ai.system_instructions": system}
    assert system_text(ModelCall(given)) == text


json_values = st.recursive(
    st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, min_size=1, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), json_values, max_size=4))
def test_a_request_survives_being_flattened(request_: dict[str, Any]) -> None:
    flat = flatten_attributes({"gen_ai": {"request": request_}})
    assert ModelCall(flat).request == request_
