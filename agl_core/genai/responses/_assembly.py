"""Assembly of streams of OpenAI's Responses.

Format: OpenAI API reference, "Responses streaming".
"""

from __future__ import annotations

from typing import Any, Final

from agl_core.genai._parts import object_at, objects_in, write_arguments
from agl_core.genai._streams import Assembler, error_of
from agl_core.genai._wire import Json

__all__ = ["LAST", "PIECES", "ResponsesAssembler"]

LAST: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
PIECES: Final = {
    "response.output_text": ("text", "content"),
    "response.refusal": ("refusal", "content"),
    "response.reasoning_text": ("text", "content"),
    "response.reasoning_summary_text": ("text", "summary"),
    "response.function_call_arguments": ("arguments", ""),
    "response.custom_tool_call_input": ("input", ""),
}
"""Field of an item's part that events of a kind fill, and the list that the part is in; without a
list it is a field of the item itself."""
_TYPES: Final = {
    "response.output_text": "output_text",
    "response.refusal": "refusal",
    "response.reasoning_text": "reasoning_text",
    "response.reasoning_summary_text": "summary_text",
}
"""Type of the part."""


class ResponsesAssembler(Assembler):
    """Assembles Responses events to a ``response``.

    Servers send texts in deltas, or only in ``.done`` events, or only in the items; and with
    ``store`` off some end with a response whose output is empty.

    Attributes:
        place: Place of the item that the last event belongs to. It is the item's ``output_index``,
            unless the server gives none or gives one to several items.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = 0
        self._response: Json = {}
        self._items: dict[int, Json] = {}
        self._done: set[int] = set()
        self._ids: dict[str, int] = {}
        self._by_index: dict[int, int] = {}
        """Place of the last item by its ``output_index``."""
        self._texts: dict[tuple[int, str, int], list[str]] = {}
        """Pieces of text by the item's place, the kind of event, and the part's index."""

    def feed(self, event: Json) -> None:
        kind: str = event.get("type") or ""
        name, _, step = kind.rpartition(".")
        if name in PIECES:
            self.place = self._place_of(event)
            self._piece(event, name, step)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self.place, item = self._place_of(event), object_at(event, "item")
            self.started = self.started or kind.endswith("done")
            self._items[self.place] = item
            if item.get("id"):
                self._ids[item["id"]] = self.place
            if kind.endswith("done"):
                self._done.add(self.place)
        elif kind in LAST:
            self._response = object_at(event, "response")
            self.finished = True
            if kind == "response.failed":
                self.error = error_of(self._response) or "the response failed"
        elif kind == "error" or (not kind and error_of(event)):
            self.error = error_of(event)
        elif "response" in event:
            self._response = object_at(event, "response")
        if step == "delta" or (step == "done" and name in PIECES):
            self.started = True

    def _place_of(self, event: Json) -> int:
        """Return the place of the item that an event belongs to, which may begin with it."""
        index, item = event.get("output_index"), object_at(event, "item")
        item_id = event.get("item_id") or item.get("id")
        if item_id in self._ids:
            return self._ids[item_id]
        if isinstance(index, int):
            place = self._by_index.get(index, index)
        else:
            place = max(self._items, default=0)
        if place in self._items and self._begins(event, item, place):
            place = max(self._items) + 1
            if item_id and not item:
                self._ids[item_id] = place
        if isinstance(index, int):
            self._by_index[index] = place
        return place

    def _begins(self, event: Json, item: Json, place: int) -> bool:
        """Return whether an event begins another item than that of its place."""
        kind: str = event["type"]
        if kind == "response.output_item.added":
            return True
        known = self._items[place]
        if place not in self._done:
            return False
        if item:
            return any(known.get(key) != item.get(key) for key in ("id", "call_id"))
        return kind.endswith("delta") and event.get("item_id") not in (None, "", known.get("id"))

    def places_of(self, output: list[Json]) -> list[int]:
        """Return the places of the items of the last response.

        Some servers give an item another id there. It is found by its number among those of its
        type; one that was not streamed gets a place of its own.
        """
        known = [self._ids.get(item.get("id") or "") for item in output]
        by_type: dict[Any, list[int]] = {}
        for place in sorted(self._items.keys() - known):
            by_type.setdefault(self._items[place].get("type"), []).append(place)
        new = max(self._items, default=-1) + 1
        found: list[int] = []
        for number, (item, place) in enumerate(zip(output, known, strict=True)):
            places = by_type.get(item.get("type"))
            unknown = places.pop(0) if place is None and places else new + number
            found.append(unknown if place is None else place)
        return found

    def _piece(self, event: Json, name: str, step: str) -> None:
        part = event.get("content_index", event.get("summary_index")) or 0
        key = self.place, name, part
        if step == "delta":
            self._texts.setdefault(key, []).append(write_arguments(event.get("delta") or ""))
        elif step == "done":
            text = event.get(PIECES[name][0])
            if text is not None:
                self._texts[key] = [write_arguments(text)]

    def item(self, index: int) -> Json:
        """Return an item with the texts received so far."""
        item = dict(self._items.get(index, {}))
        if index in self._done:
            return item
        for (place, name, part), pieces in sorted(self._texts.items()):
            text = "".join(pieces)
            if place != index or not text:
                continue
            field, where = PIECES[name]
            if not where:
                custom = field == "input"
                item.setdefault("type", "custom_tool_call" if custom else "function_call")
                item[field] = text
                continue
            reasons = name.startswith("response.reasoning")
            item.setdefault("type", "reasoning" if reasons else "message")
            if not reasons:
                item.setdefault("role", "assistant")
            parts = [dict(one) for one in objects_in(item.get(where))]
            parts += [{} for _ in range(part + 1 - len(parts))]
            parts[part] = {**parts[part], "type": _TYPES[name], field: text}
            item[where] = parts
        return item

    def result(self) -> Json:
        if self.finished and self._response.get("output"):
            return self._response
        places = sorted({*self._items, *(index for index, _, _ in self._texts)})
        output = [self.item(index) for index in places]
        return {**self._response, "object": "response", "output": output}
