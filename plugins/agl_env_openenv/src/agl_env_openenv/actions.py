"""The text forms of actions and observations, which servers describe by JSON schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_TAGGED: Final = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_COMMON: Final = "metadata"
"""A field of every action and observation, for programs and not for players."""


class InvalidActionError(ValueError):
    """A reply has no valid action; the message is for the model."""


@dataclass(frozen=True)
class ActionFormat:
    """How a reply of the model becomes an action.

    Attributes:
        schema: JSON schema of actions.
        key: Field that the answer fills; None: the answer is an object with all fields.
        fields: Fields of every action, which the model does not give.
    """

    schema: Mapping[str, Any]
    key: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> str:
        """Return what an action is, for the model."""
        if self.key is None:
            return f"a JSON object of this schema: {json.dumps(self._object())}"
        about = self._field(self.key)
        note = about.get("description")
        if "enum" in about and self._is_text(about):
            text = f"one of {', '.join(about['enum'])}"
        elif self._is_text(about):
            text = "a text"
        else:
            text = f"JSON of this schema: {json.dumps(self._with_definitions(about))}"
        return f"{text} ({note})" if note and self._is_text(about) else text

    def read(self, reply: str) -> dict[str, Any]:
        """Return the action in a reply: its last ``<action>``, or else the whole reply.

        Raises:
            InvalidActionError: It is not JSON, where it has to be.
        """
        tagged = _TAGGED.findall(reply)
        text = (tagged[-1] if tagged else reply).strip()
        if self.key is not None and self._is_text(self._field(self.key)):
            return {**self.fields, self.key: text}
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:  # thousands of brackets
            raise self.invalid(reply, f"not JSON: {error}") from error
        if self.key is not None:
            return {**self.fields, self.key: value}
        if not isinstance(value, dict):
            raise self.invalid(reply, "not a JSON object")
        return {**value, **self.fields}

    def invalid(self, reply: str, why: str) -> InvalidActionError:
        """Return the error of a reply whose action is not valid, with what an action is."""
        tagged = _TAGGED.findall(reply)
        text = (tagged[-1] if tagged else reply).strip()
        return InvalidActionError(
            f"{text[:80]!r} is not a valid action ({why}). An action is {self.describe()}."
        )

    def _object(self) -> dict[str, Any]:
        hidden = {_COMMON, *self.fields}
        shown = {k: v for k, v in self.schema.get("properties", {}).items() if k not in hidden}
        required = [name for name in self.schema.get("required", ()) if name not in hidden]
        return self._with_definitions({"type": "object", "properties": shown, "required": required})

    def _with_definitions(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        definitions = self.schema.get("$defs")
        return {**schema, "$defs": definitions} if definitions else dict(schema)

    def _field(self, key: str) -> dict[str, Any]:
        """Return the schema of a field, without references and the choice to leave it out."""
        about: dict[str, Any] = self.schema["properties"][key]
        choices = [each for each in about.get("anyOf", ()) if each.get("type") != "null"]
        if len(choices) == 1:
            about = {**about, **choices[0]}
        name = str(about.get("$ref", "")).removeprefix("#/$defs/")
        return {**self.schema.get("$defs", {}).get(name, {}), **about}

    @staticmethod
    def _is_text(about: Mapping[str, Any]) -> bool:
        return about.get("type") == "string"


def only_field(schema: Mapping[str, Any], fields: Mapping[str, Any]) -> str | None:
    """Return the field that an answer fills if there is no choice.

    Args:
        schema: JSON schema of actions.
        fields: Fields that are given already.
    """
    hidden = {_COMMON, *fields}
    open_ = [name for name in schema.get("properties", {}) if name not in hidden]
    required = [name for name in open_ if name in schema.get("required", ())]
    candidates = required or open_
    return candidates[0] if len(candidates) == 1 else None


def observation_text(observation: Mapping[str, Any], key: str | None) -> str:
    """Return the text form of an observation.

    Args:
        observation: The server's observation.
        key: Field to give alone; None: all but the metadata.

    Raises:
        KeyError: There is no such field.
    """
    if key is not None:
        shown: Any = observation[key]
    else:
        shown = {name: value for name, value in observation.items() if name != _COMMON}
        if len(shown) == 1:
            (only,) = shown.values()
            shown = only if isinstance(only, str) else shown
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
