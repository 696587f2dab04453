"""Compiles the dialects of the core and of plugins into the vocabulary of this process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agl_adapters.dialects import DIALECTS
from agl_adapters.foreign_spans import foreign_tool
from agl_core.adapter import AdapterReport, AgentName, Dialect, Reason
from agl_core.plugins import Registry, get_registry, remedy

if TYPE_CHECKING:
    from agl_core.types import Span

_SPLITS: Final = 16_384
"""Maximum number of attribute keys whose split a vocabulary caches."""


class Source(NamedTuple):
    """A parsed path."""

    key: str
    """Attribute that may hold the value itself."""
    root: str
    steps: tuple[str, ...]
    row: Dialect


FieldTable = Mapping[str, tuple[Source, ...]]


def compile_fields(dialects: Iterable[Dialect]) -> FieldTable:
    """Return the sources of all dialects by field, in the order to try them."""
    names = [
        column.name
        for column in fields(Dialect)
        if column.name
        not in {"name", "marks", "kind", "call_kinds", "agents", "proxy_span", "tool_inside"}
        and not column.name.endswith(("_shape", "_without"))
    ]
    table: dict[str, dict[str, Source]] = {name: {} for name in names}
    for dialect in dialects:
        for name in names:
            for path in getattr(dialect, name):
                root, *steps = path.split("/")
                source = Source(path.replace("/", "."), root, tuple(steps), dialect)
                table[name].setdefault(path, source)  # several dialects may list a path: first wins
    return {name: tuple(sources.values()) for name, sources in table.items()}


class Vocabulary:
    """Dialects, compiled for reading spans. Immutable except for its caches; thread-safe.

    Args:
        dialects: The dialects, in the order in which their paths are tried.
    """

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self.dialects = tuple(dialects)
        self.fields = compile_fields(dialects)
        self._marks = frozenset(mark for dialect in dialects for mark in dialect.marks)
        self._kinds = {each.kind: each.call_kinds for each in dialects if each.kind}
        self._agents = tuple(rule for dialect in dialects for rule in dialect.agents)
        self._agent_keys = frozenset(rule.key for rule in self._agents)
        self._splits: dict[str, tuple[str, str] | None] = {}

    @cached_property
    def proxy_tables(self) -> Mapping[str, FieldTable]:
        """Paths of the proxies' dialects, by the name of the spans that they write."""
        names = dict.fromkeys(row.proxy_span for row in self.dialects if row.proxy_span)
        return {
            name: compile_fields(row for row in self.dialects if row.proxy_span == name)
            for name in names
        }

    @cached_property
    def _roots(self) -> re.Pattern[str]:
        roots = {source.root for sources in self.fields.values() for source in sources}
        return re.compile(f"({'|'.join(map(re.escape, sorted(roots)))})\\.(.+)", re.DOTALL)

    def split_root(self, key: str) -> tuple[str, str] | None:
        """Split an attribute's key into a root of the table and the rest; None without a root."""
        splits = self._splits  # a cache: spans repeat a small set of keys
        if key in splits:
            return splits[key]
        found = self._roots.fullmatch(key)
        split = (found[1], found[2]) if found else None
        if len(splits) < _SPLITS:
            splits[key] = split
        return split

    def is_model_call(self, attributes: Mapping[str, Any]) -> bool:
        """Return whether a span's attributes describe a model call, in any dialect."""
        if self._marks.isdisjoint(attributes):
            return False
        # A span without the kind attribute counts; one of another kind (an embedding) does not.
        kinds = self._kinds.items()
        return all(str(attributes.get(key, known[0])) in known for key, known in kinds)

    def agent_name(self, span_name: str, attributes: Mapping[str, Any]) -> str | None:
        """Return the name of the agent whose run the span records; None for any other span."""
        if self._agent_keys.isdisjoint(attributes):
            return None
        for rule in self._agents:
            value = attributes.get(rule.key)
            if value is not None and _applies(rule, span_name, attributes):
                return str(value)
        return None


def _applies(rule: AgentName, span_name: str, attributes: Mapping[str, Any]) -> bool:
    fits = rule.where is None or attributes.get(rule.where[0]) == rule.where[1]
    return fits and span_name.startswith(rule.span_name)


_compiled: tuple[Registry, Vocabulary] | None = None


def vocabulary() -> Vocabulary:
    """Return the vocabulary of this process, compiling it on the first call."""
    global _compiled
    registry = get_registry()
    if _compiled is None or _compiled[0] is not registry:
        _compiled = registry, Vocabulary([*DIALECTS, *_of_plugins()])
    return _compiled[1]


def _of_plugins() -> Iterator[Dialect]:
    for _, dialects in get_registry().resolved("dialect"):
        yield from dialects


def is_model_call(attributes: Mapping[str, Any]) -> bool:
    """Return whether a span's attributes describe a model call, in any known dialect."""
    return vocabulary().is_model_call(attributes)


def agent_name(span_name: str, attributes: Mapping[str, Any]) -> str | None:
    """Return the name of the agent whose run the span records; None for any other span."""
    return vocabulary().agent_name(span_name, attributes)


# -- dialects whose package is not installed -----------------------------------------------------


_SPAN_NAMES: Final = {"litellm_request": "litellm", "raw_gen_ai_request": "litellm"}
_KEYS: Final = {
    "langchain.chain.type": "agentops",
    "recipient_agent_type": "agentops",
    "lc_name": "weave",
}
"""Dialect by attribute; with the span names above, these need a package of this project."""


def count_unread(spans: Iterable[Span], report: AdapterReport) -> None:
    """Count the spans whose dialect is not read: its package is missing, or their content."""
    spans = list(spans)
    for span in spans:
        tool = foreign_tool(span.attributes)
        if tool is not None and "gen_ai.output.messages" not in span.attributes:
            report.leave_out("span", f"{Reason.UNREAD_DIALECT} of {tool}, without an answer in it")
    usable = {record.name for record in get_registry().usable("dialect")}
    names = {name: dialect for name, dialect in _SPAN_NAMES.items() if dialect not in usable}
    keys = {key: dialect for key, dialect in _KEYS.items() if dialect not in usable}
    if not names and not keys:
        return
    for span in spans:
        dialect = names.get(span.name)
        if dialect is None and not keys.keys().isdisjoint(span.attributes):
            dialect = next(keys[key] for key in keys if key in span.attributes)
        if dialect is not None:
            why = f"{Reason.UNREAD_DIALECT} {dialect!r}: {remedy('dialect', dialect)}"
            report.leave_out("span", why)
