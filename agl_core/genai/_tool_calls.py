"""Which tool call a piece of a chat stream belongs to.

By the protocol each piece has the index of its call. Servers send other things: no index or null
(Gemini), 0 for every call (Ollama), numbers from 1, an index in the first piece only.
"""

from __future__ import annotations

from typing import Any

from agl_core.genai._parts import function_of
from agl_core.genai._wire import Json

__all__ = ["ToolCallPlaces"]


class ToolCallPlaces:
    """Numbers the tool calls of one choice from 0, in the order in which they begin."""

    def __init__(self) -> None:
        self._ids: list[str | None] = []
        self._named: list[bool] = []
        self._by_index: dict[Any, int] = {}

    def place(self, piece: Json) -> int:
        """Return the number of the call that a piece belongs to, which may begin with it."""
        index, call_id = piece.get("index"), piece.get("id") or None
        name, _ = function_of(piece)
        place = self._known(index, call_id, name)
        if place is None:
            place = len(self._ids)
            self._ids.append(None)
            self._named.append(False)
        if isinstance(index, int):
            self._by_index[index] = place
        self._ids[place] = self._ids[place] or call_id
        self._named[place] = self._named[place] or name is not None
        return place

    def _known(self, index: Any, call_id: str | None, name: str | None) -> int | None:
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
        other = call_id is not None and self._ids[place] not in (None, call_id)
        # Some servers give each piece of a call another id; only its first piece has the name.
        begins = other and name is not None
        if not isinstance(index, int):  # neither an index nor an id
            begins = name is not None and self._named[place]
        return None if begins else place
