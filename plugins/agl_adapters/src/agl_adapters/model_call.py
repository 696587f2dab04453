"""Reads one model call from a span's attributes, in any known dialect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from agl_adapters.literals import parse_literal
from agl_adapters.vocabulary import FieldTable, Source, vocabulary
from agl_core.adapter import Dialect, Repair
from agl_core.otel import unflatten_attributes

_LISTS: Final = frozenset({"completion", "prompt"})
"""Fields that hold messages."""
_OF_A_CHOICE: Final = ("response_ids", "logprobs", "finish_reason")
"""Fields that each choice of a call has a value of."""


class ModelCall:
    """A view of a span's attributes as a model call; each field is read on first access.

    Args:
        attributes: Attributes of the span; not changed and not copied.
        table: The paths to try per field; those of all known dialects by default.

    Attributes:
        problems: Values that were found but are unusable.
    """

    __slots__ = ("_attributes", "_below", "_nested", "_table", "problems")

    def __init__(self, attributes: Mapping[str, Any], table: FieldTable | None = None) -> None:
        self._attributes = attributes
        self._table = vocabulary().fields if table is None else table
        self._below: dict[str, dict[str, Any]] | None = None
        self._nested: dict[str, Any] = {}
        self.problems: list[Repair] = []

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes that the call is read from."""
        return self._attributes

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """Tokens of the prompt and of the response: as the server counts them, or of their ids."""
        taken, given = (_count(self.find(name)[0]) for name in ("input_tokens", "output_tokens"))
        return (
            taken if taken is not None else len(self.prompt_ids) or None,
            given if given is not None else len(self.response_ids) or None,
        )

    @property
    def response_id(self) -> str | None:
        """Id of the response, assigned by the server; None if it is missing or empty."""
        return self._text("response_id") or None

    @property
    def model(self) -> str | None:
        return self._text("model")

    @property
    def model_version(self) -> str | None:
        """Version of the weights that answered."""
        return self._text("model_version")

    @property
    def finish_reason(self) -> str | None:
        """Why the response ended: ``stop``, ``length``, ``tool_calls``, …"""
        return self._text("finish_reason")

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt as the model saw them; empty if they were not captured."""
        return self._token_ids("prompt_ids")

    @property
    def response_ids(self) -> list[int]:
        """Token ids that the model sampled; empty if they were not captured."""
        return self._token_ids("response_ids")

    @property
    def completeness(self) -> tuple[bool, bool, bool, bool, bool]:
        """What training needs and the span has; of two spans of a call the greater one is read.

        Sampled token ids, those of the prompt, all that were sampled, log-probabilities, the
        version of the weights. A client that asks for token ids has them, too, but only a proxy
        knows the version.
        """
        sampled = bool(self.response_ids)
        return (
            sampled,
            bool(self.prompt_ids),
            sampled and self.has_all_ids,
            self.find("logprobs")[0] is not None,
            self.model_version is not None,
        )

    @property
    def choices(self) -> int:
        """Number of answers that the call returned; 1 if it is unknown."""
        reasons: Any = self._attributes.get("gen_ai.response.finish_reasons")
        if isinstance(reasons, (list, tuple)):  # saves the parsing of the answers
            return max(1, len(cast("Sequence[Any]", reasons)))
        raw, _ = self.structure("completion")
        return len(cast("list[Any]", raw)) if isinstance(raw, list) and raw else 1

    @property
    def choices_ids(self) -> list[list[int]]:
        """Token ids of each choice; an empty list for one whose ids were not captured."""
        found = [self.response_ids]
        found += [self.of_choice(number).response_ids for number in range(1, self.choices)]
        return found

    @property
    def sampled_tokens(self) -> int | None:
        """Number of tokens that the server says it sampled, for all choices."""
        value, _ = self.find("output_tokens")
        return value if isinstance(value, int) else None

    @property
    def has_all_ids(self) -> bool:
        """Whether the token ids are as many as the server says it sampled, where it says so."""
        sampled = self.sampled_tokens
        return sampled is None or sum(map(len, self.choices_ids)) >= sampled

    def of_choice(self, number: int) -> ModelCall:
        """Return the call with the token ids, log-probabilities and end of another choice.

        A choice of which these were not captured has none of them.
        """
        if number == 0:
            return self
        table = dict(self._table)
        for field in _OF_A_CHOICE:
            table[field] = tuple(_of_choice(source, number) for source in self._table[field])
        made = ModelCall(self._attributes, table)
        made._below, made._nested = self._below, self._nested  # the roots are the same
        return made

    @property
    def logprobs(self) -> list[Any] | None:
        """One entry per response token in OpenAI's form (``{"token", "logprob", …}``), or None."""
        value, _ = self.find("logprobs")
        if value is None:
            return None
        parsed = parse_literal(value)
        if isinstance(parsed, list):
            return cast("list[Any]", parsed)
        self._note(Repair.BAD_LOGPROBS)
        return None

    @property
    def request(self) -> dict[str, Any]:
        """The request's parameters without its messages."""
        return self._parameters("request")

    @property
    def response(self) -> dict[str, Any]:
        """The response's parameters without its choices and tokens."""
        return self._parameters("response")

    def structure(self, field: str) -> tuple[Any, Dialect | None]:
        """Return a field's value with JSON text parsed, and the dialect that found it."""
        found, row = self.find(field)
        value = parse_literal(found)
        return numbered(value) if field in _LISTS else value, row

    def find(self, field: str) -> tuple[Any, Dialect | None]:
        """Return a field's stored value, and the dialect that found it."""
        attributes = self._attributes
        below = self._below
        if below is None:
            below = self._below = _below_roots(attributes)
        for key, root, steps, row in self._table[field]:
            value = attributes.get(key)
            if value is None:
                if root in below:
                    if root not in self._nested:
                        self._nested[root] = unflatten_attributes(below[root])
                    value = self._nested[root]
                else:
                    value = attributes.get(root)
                if value is None:
                    continue
                value = at(value, steps)
            if value is not None:
                return value, row
        return None, None

    def _note(self, problem: Repair) -> None:
        if problem not in self.problems:  # fields are read more than once
            self.problems.append(problem)

    def _text(self, field: str) -> str | None:
        value, _ = self.find(field)
        return None if value is None else str(value)

    def _token_ids(self, field: str) -> list[int]:
        value, _ = self.find(field)
        if value is None:
            return []
        ids = _integers(parse_literal(value))
        if ids is None:
            self._note(Repair.BAD_TOKEN_IDS)
            return []
        return ids

    def _parameters(self, field: str) -> dict[str, Any]:
        value, row = self.structure(field)
        if row is None or not isinstance(value, dict):
            return {}
        without = row.request_without if field == "request" else row.response_without
        found = cast("dict[str, Any]", value)
        return {key: item for key, item in found.items() if key not in without}


def _of_choice(source: Source, number: int) -> Source:
    """Return where a dialect has a value of another choice than the first.

    A path has the number of the choice in it (``output.value/choices/0/token_ids``). A key without
    one (``response_token_ids``) is of the first choice, and the others' numbers follow it.
    """
    steps = list(source.steps)
    if "0" not in steps:
        key = f"{source.key}.{number}"
        return Source(key, key, (), source.row)
    steps[steps.index("0")] = str(number)
    return Source(".".join([source.root, *steps]), source.root, tuple(steps), source.row)


def _count(value: Any) -> int | None:
    try:
        return None if value is None else int(value)
    except (ValueError, TypeError, OverflowError):
        return None


def _below_roots(attributes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Group the attributes below each root of the table, by the rest of their key."""
    split_root = vocabulary().split_root
    below: dict[str, dict[str, Any]] = {}
    for key, value in attributes.items():
        split = split_root(key)
        if split is not None:
            root, rest = split
            if root in below:
                below[root][rest] = value
            else:
                below[root] = {rest: value}
    return below


def at(value: Any, steps: Sequence[str]) -> Any:
    """Follow ``steps`` into nested lists and dicts, parsing text on the way; None if one fails."""
    for step in steps:
        value = parse_literal(value)
        if isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(step)
        elif isinstance(value, (list, tuple)) and step.isdigit():
            items = cast("Sequence[Any]", value)
            value = items[int(step)] if int(step) < len(items) else None
        else:
            return None
    return value


def numbered(value: Any) -> Any:
    """Return the numbered entries of a mapping as a list; any other value unchanged.

    Nested attributes are a mapping, not a list, if numbers are missing (OpenTelemetry drops
    attributes above a limit) or if Azure's ``gen_ai.prompt.prompt_filter_results`` is beside
    ``gen_ai.prompt.0.role``.
    """
    if not isinstance(value, Mapping):
        return value
    entries = cast("Mapping[str, Any]", value)
    keys = sorted((key for key in entries if str(key).isdecimal()), key=int)
    return [entries[key] for key in keys] or entries


def _integers(value: Any) -> list[int] | None:
    """Return ``value`` as token ids (integers from 0 to 2**31 - 1), or None if it is not that."""
    if not isinstance(value, (list, tuple)):
        return None
    items = cast("Sequence[Any]", value)
    types = set(map(type, items))
    if not types <= {int, float} or (items and not 0 <= min(items) <= max(items) < 2**31):
        return None
    if types <= {int}:
        return list(items)
    # Numbers that passed through JavaScript or a float column come back as floats.
    if all(math.isfinite(item) and item == int(item) for item in items):
        return [int(item) for item in items]
    return None
