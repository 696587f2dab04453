"""Finds installed plugins by their entry points, without importing them, but for catalogues.

The distributions on ``sys.path`` are read one by one here, for two reasons. The lookup of
:mod:`stevedore` drops data that a record needs (the distribution of an entry point, its version and
requirements). And one malformed ``entry_points.txt`` must not hide the other plugins. stevedore
loads the plugins that were found (:mod:`agl_core.plugins._loading`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import Distribution, EntryPoint, distributions
from itertools import groupby
from typing import Final

from agl_core.plugins._catalogue import Catalogue
from agl_core.plugins._kinds import KINDS
from agl_core.plugins._records import (
    CORE_DISTRIBUTION,
    PluginRecord,
    canonical_name,
    split_name,
)
from agl_core.plugins._spec import ENTRY_POINT_GROUP
from agl_core.plugins._switches import Switches

_HEADER: Final = f"[{ENTRY_POINT_GROUP}]"
_OF_EXTRA: Final = re.compile(r"^[^;]*;\s*extra == (['\"])[\w.-]+\1$")
_REQUIRED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?=\s*(?:[\[(<>=!~;@]|$))")


def discover(switches: Switches) -> tuple[PluginRecord, ...]:
    """Return a record of every entry point in the group, sorted by kind, name and distribution.

    Never raises because of a broken distribution, and imports no plugin but catalogues.
    """
    found: dict[str, list[PluginRecord]] = {}
    for distribution in distributions():
        try:
            records = list(_records_of(distribution))
        except Exception as error:  # malformed metadata can raise any error
            records = [_unreadable(distribution, error)]
        if records:
            # If the path has several copies of a distribution, Python imports the first.
            found.setdefault(records[0].dist, records)
    judged = [_judge(record, switches) for records in found.values() for record in records]
    judged.sort(key=lambda record: (record.kind, record.name, record.dist))
    catalogue = Catalogue(r for r in judged if r.kind == "catalogue" and r.status == "ok")
    settled = list(_settle_conflicts(judged, catalogue))
    kinds = {record.name: record for record in settled if record.kind == "kind"}
    kinds.update((r.name, r) for r in settled if r.kind == "kind" and r.status == "ok")
    return tuple(_judge_kind(record, kinds) for record in settled)


def _records_of(distribution: Distribution) -> Iterator[PluginRecord]:
    text = distribution.read_text("entry_points.txt")
    if text is None or _HEADER not in text:  # most distributions; parsing each one is slow
        return
    metadata = distribution.metadata
    dist = canonical_name(metadata["Name"])
    requires = tuple(metadata.get_all("Requires-Dist") or ())
    seen: set[tuple[str, str]] = set()
    for entry in distribution.entry_points:
        if entry.group != ENTRY_POINT_GROUP or (entry.name, entry.value) in seen:
            continue
        seen.add((entry.name, entry.value))
        kind, name, problem = split_name(entry.name)
        yield PluginRecord(
            kind=kind,
            name=name,
            dist=dist,
            version=metadata["Version"],
            status="broken" if problem else "ok",
            error=problem,
            value=entry.value,
            requires=requires,
        )


def _unreadable(distribution: Distribution, error: Exception) -> PluginRecord:
    location = str(getattr(distribution, "_path", distribution))
    return PluginRecord(
        kind="?",
        name="?",
        dist=canonical_name(location.replace("\\", "/").rsplit("/", 1)[-1].split("-", 1)[0]),
        version="?",
        status="broken",
        error=f"metadata in {location} cannot be read: {type(error).__name__}: {error}",
        value="",
    )


def _judge(record: PluginRecord, switches: Switches) -> PluginRecord:
    """Return the record with its status; conflicts with other plugins are not checked yet."""
    if verdict := switches.verdict(record):
        return replace(record, status="disabled", error=verdict)
    if record.status != "ok":
        return record
    if problem := _bad_value(record):
        return replace(record, status="broken", error=problem)
    if problem := _wrong_core(record):
        return replace(record, status="incompatible", error=problem)
    return record


def _judge_kind(record: PluginRecord, added: Mapping[str, PluginRecord]) -> PluginRecord:
    """Return the record with a status that respects that of its kind.

    Args:
        record: The record.
        added: The plugins that add kinds, by the name of the kind.
    """
    if record.kind == "kind" and record.status == "ok":
        if record.name not in KINDS:
            return record
        return replace(record, status="broken", error=f"the kind {record.name!r} is the core's")
    if record.kind in KINDS or record.status not in ("ok", "conflict"):
        return record
    kind = added.get(record.kind)
    if kind is None:
        known = ", ".join((*KINDS, *added))
        problem = f"entry point {record.key!r} names no kind (kinds: {known})"
        return replace(record, status="broken", error=problem)
    kind = _judge_kind(kind, added)
    if kind.status == "ok":
        return record
    return replace(record, status=kind.status, error=f"{kind.key} of {kind.origin}: {kind.error}")


def _bad_value(record: PluginRecord) -> str:
    parts = record.value.split(".")
    if all(part.isidentifier() for part in parts):
        return ""
    entry = EntryPoint(record.key, record.value, ENTRY_POINT_GROUP)
    if entry.pattern.match(record.value) and ":" in record.value:
        return f"entry point value {record.value!r} has to name a module, not something in it"
    return f"entry point value {record.value!r} is not the name of a module"


def _wrong_core(record: PluginRecord) -> str:
    """Return a message about an unmet requirement on the core; empty if all are met."""
    from agl_core import __version__

    # What nearly every plugin requires; packaging, which reads the rest, takes 20 ms to import.
    # A pre-release such as 0.2.0rc1 is below 0.2.
    major, minor, patch = __version__.split(".", 2)
    usual = f"{CORE_DISTRIBUTION}<{major}.{int(minor) + 1},>={major}.{minor}" * patch.isdigit()
    concerning = [text for text in record.requires if text.lower().startswith("agl")]
    concerning = [text for text in concerning if text != usual and not _is_other(text)]
    if not concerning:
        return ""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in concerning:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            return f"requirement {text!r} cannot be read: {error}"
        if canonical_name(requirement.name) != CORE_DISTRIBUTION:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.specifier.contains(__version__, prereleases=True):
            return (
                f"requires {CORE_DISTRIBUTION}{requirement.specifier}, and {__version__} is "
                f"running: upgrade {record.dist} and {CORE_DISTRIBUTION}"
            )
    return ""


def _is_other(requirement: str) -> bool:
    """Return whether a requirement is, for certain, of another distribution or of an extra."""
    name = _REQUIRED.match(requirement)
    other = name is not None and canonical_name(name[0]) != CORE_DISTRIBUTION
    return other or _OF_EXTRA.search(requirement) is not None


def _settle_conflicts(records: list[PluginRecord], catalogue: Catalogue) -> Iterator[PluginRecord]:
    """Mark the records that provide the same name; ``records`` is sorted by kind and name."""
    for _, group in groupby(records, key=lambda record: (record.kind, record.name)):
        rivals = list(group)
        usable = [record for record in rivals if record.status == "ok"]
        owner = catalogue.package_of(rivals[0].kind, rivals[0].name)
        for record in rivals:
            if record.status != "ok":
                yield record
            elif owner and record.dist != owner:
                yield replace(
                    record,
                    status="conflict",
                    error=f"the name belongs to {owner}; ask for {record.pin!r} to use this one",
                )
            elif len(usable) == 1:
                yield record
            elif sum(other.dist == record.dist for other in usable) > 1:
                yield replace(
                    record, status="broken", error=f"{record.dist} declares {record.key} twice"
                )
            elif owner:
                yield record
            else:
                others = ", ".join(o.origin for o in usable if o.dist != record.dist)
                yield replace(
                    record,
                    status="conflict",
                    error=f"{others} provides {record.key} too; pin one, e.g. {record.pin!r}, or "
                    "switch one off",
                )
