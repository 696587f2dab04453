"""The text forms of observations and actions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from gymnasium import Space, spaces

_TAGGED: Final = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_HIGHLIGHTED: Final = re.compile(r"(?:\x1b\[[1-9][0-9;]*m)+(.*?)(?:\x1b\[0?m)+", re.DOTALL)
_LARGEST: Final = 1024
"""Largest number of values of an array that a model can read; images have more."""


class InvalidActionError(ValueError):
    """A reply without a valid action; the message is for the model."""


def describe_actions(space: Space[Any], names: Sequence[str] | None) -> str:
    """Return what an action looks like, for the model.

    Raises:
        TypeError: The space has no text form.
    """
    if isinstance(space, spaces.Discrete):
        if names is not None:
            return "one of " + ", ".join(names)
        return f"an integer from {space.start} to {space.start + space.n - 1}"
    if isinstance(space, spaces.Text):
        return f"a text of {space.min_length} to {space.max_length} characters"
    if _is_readable(space):
        return f"JSON: {_describe(space)}"
    raise TypeError(f"actions of {space} have no text form")


def _describe(space: Space[Any]) -> str:
    if isinstance(space, spaces.Discrete):
        return describe_actions(space, None)
    if isinstance(space, spaces.Text):
        return describe_actions(space, None)
    if isinstance(space, spaces.Tuple):
        return "a list of " + "; ".join(_describe(part) for part in space.spaces)
    if isinstance(space, spaces.Dict):
        return "an object with " + "; ".join(
            f"{json.dumps(key)}: {_describe(part)}" for key, part in space.spaces.items()
        )
    if isinstance(space, spaces.MultiDiscrete):
        limits = (space.start + space.nvec - 1).tolist()
        return f"a list of integers from {space.start.tolist()} to {limits}"
    if isinstance(space, spaces.MultiBinary):
        return f"a list of 0 and 1 of shape {list(space.shape)}"
    box = cast("spaces.Box", space)
    return f"a list of numbers from {json_value(box.low)} to {json_value(box.high)}"


def check_observations(space: Space[Any]) -> None:
    """Raise if observations have no text form.

    Raises:
        TypeError: They are images, graphs or sequences.
    """
    if not _is_readable(space):
        raise TypeError(f"observations of {space} have no text form")


def _is_readable(space: Space[Any]) -> bool:
    if isinstance(space, spaces.Tuple):
        return all(_is_readable(part) for part in space.spaces)
    if isinstance(space, spaces.Dict):
        return all(_is_readable(part) for part in space.spaces.values())
    if isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)):
        return int(np.prod(space.shape)) <= _LARGEST
    return isinstance(space, (spaces.Discrete, spaces.Text))


def read_action(space: Space[Any], reply: str, names: Sequence[str] | None) -> Any:
    """Return the action in a model's reply: its last ``<action>``, or else the whole reply.

    Args:
        space: The environment's action space.
        reply: Text of the model.
        names: Names of the actions of a discrete space.

    Raises:
        InvalidActionError: There is no action of the space in the reply.
    """
    tagged = _TAGGED.findall(reply)
    text = (tagged[-1] if tagged else reply).strip()
    action = _parse(space, text, names)
    if action is None or not space.contains(action):
        raise InvalidActionError(
            f"{text[:80]!r} is not a valid action. An action is {describe_actions(space, names)}."
        )
    return action


def _parse(space: Space[Any], text: str, names: Sequence[str] | None) -> Any:
    if isinstance(space, spaces.Text):
        return text
    if isinstance(space, spaces.Discrete) and names is not None:
        known = {name.lower(): space.start + i for i, name in enumerate(names)}
        return known.get(text.lower())
    try:
        return _from_json(space, json.loads(text))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None  # not JSON, thousands of brackets, or not of this space


def _from_json(space: Space[Any], value: Any) -> Any:
    if isinstance(space, spaces.Tuple):
        return tuple(_from_json(part, each) for part, each in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Dict):
        return {key: _from_json(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)):
        array = np.asarray(value, dtype=space.dtype)
        # A cast to integers drops fractions: the action would be another one than the model's.
        whole = array.dtype.kind == "f" or np.array_equal(array, value)
        return array if whole else None
    return None if isinstance(value, bool) else value


def observation_text(observation: Any, drawing: str | None = None) -> str:
    """Return the text form of an observation.

    Args:
        observation: Texts are given as they are, all else as JSON.
        drawing: The environment's own text form, if it has one; highlighted characters are put in
            brackets.
    """
    text = observation if isinstance(observation, str) else json.dumps(json_value(observation))
    if drawing is None:
        return text
    marked = _HIGHLIGHTED.sub(r"[\1]", drawing).strip()
    return f"Observation: {text}\n{marked}"


def json_value(value: Any) -> Any:
    """Return a value of a space as JSON types, with numbers rounded to four digits."""
    if isinstance(value, np.ndarray):
        return json_value(value.tolist())
    if isinstance(value, np.generic):
        return json_value(value.item())
    if isinstance(value, Mapping):
        return {str(k): json_value(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [json_value(each) for each in cast("Sequence[Any]", value)]
    return round(value, 4) if isinstance(value, float) else value
