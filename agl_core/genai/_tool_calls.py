"""Which tool call a piece of a chat stream belongs to.

By the protocol each piece has the index of its call, and the first one has its id and its name.
Servers send other things: no index or null (Gemini), 0 for every call (Ollama), numbers from 1, an
index in the first piece only, no ids, the name in each piece, the name after the id.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from agl_core.genai._parts import function_of
from agl_core.genai._wire import Json, loads

__all__ = ["Piece", "ToolCallPieces", "ToolCallPlaces"]


class ToolCallPlaces:
    """Numbers the tool calls of one choice from 0, in the order in which they begin."""

    def __init__(self) -> None:
        self._ids: list[str | None] = []
        self._names: list[str | None] = []
        self._texts: list[list[str]] = []
        self._by_index: dict[Any, int] = {}

    def place(self, piece: Json) -> int:
        """Return the number of the call that a piece belongs to, which may begin with it."""
        index, call_id = piece.get("index"), piece.get("id") or None
        name, arguments = function_of(piece)
        place = self._known(index, call_id, name, arguments)
        if place is None:
            place = len(self._ids)
            self._ids.append(None)
            self._names.append(None)
            self._texts.append([])
        if isinstance(index, int):
            self._by_index[index] = place
        self._ids[place] = self._ids[place] or call_id
        self._names[place] = self._names[place] or name
        self._texts[place].append(arguments)
        return place

    def _known(
        self, index: Any, call_id: str | None, name: str | None, arguments: str
    ) -> int | None:
        if not self._ids:
            return None
        place = len(self._ids) - 1
        if isinstance(index, int):
            found = self._by_index.get(index)
            if found is None:
                # An index for the first time, of a call that began without one.
                ours = call_id is not None and call_id == self._ids[place]
                return place if ours and not self._by_index else None
            place = found
        elif call_id is not None:
            return self._ids.index(call_id) if call_id in self._ids else None
        if name is None or self._names[place] is None:
            return place  # only the first piece of a call has the name
        if call_id is not None:
            return None if self._ids[place] not in (None, call_id) else place
        # The name again, and no id: another call, unless the server sends it with each piece.
        text = "".join(self._texts[place])
        if isinstance(index, int) and not (arguments and text) and name == self._names[place]:
            return place
        return place if text and not _is_whole(text) and name == self._names[place] else None


def _is_whole(arguments: str) -> bool:
    try:
        return isinstance(loads(arguments.encode("utf-8", "surrogatepass")), dict)
    except ValueError:
        return False


class Piece(NamedTuple):
    """A piece of a call, as the protocols of agents need it."""

    place: int
    """The number of the call."""
    begins: bool
    """Whether it is the first of the call."""
    id: str | None
    name: str
    arguments: str


class ToolCallPieces:
    """Gives the pieces of the tool calls of one choice, each call from its name on.

    What comes before the name is held, since agents get the name with the first piece.
    """

    def __init__(self) -> None:
        self._places = ToolCallPlaces()
        self._begun: set[int] = set()
        self._held: dict[int, tuple[str | None, list[str]]] = {}

    def feed(self, piece: Json) -> list[Piece]:
        """Return what an agent gets of a piece now."""
        place, call_id = self._places.place(piece), piece.get("id") or None
        name, arguments = function_of(piece)
        if place in self._begun:
            return [Piece(place, False, call_id, name or "", arguments)]
        early_id, early = self._held.pop(place, (None, []))
        call_id = early_id or call_id
        if name is None:
            self._held[place] = call_id, [*early, arguments]
            return []
        self._begun.add(place)
        return [Piece(place, True, call_id, name, "".join([*early, arguments]))]

    def close(self) -> list[Piece]:
        """Return the calls that never got a name."""
        held, self._held = self._held, {}
        return [
            Piece(place, True, call_id, "", "".join(texts))
            for place, (call_id, texts) in sorted(held.items())
        ]
