"""Loads one plugin and reports: ``python -m agl_doctor.probe REPORT PLUGIN build|import``.

``PLUGIN`` is the plugin's record as JSON. The result is written to the file ``REPORT`` as JSON. A
missing report tells the caller (:mod:`agl_doctor.examine`) that the plugin ended the process.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from agl_core.errors import (
    AglError,
    ConfigError,
    PluginBrokenError,
    PluginIncompatibleError,
    error_text,
)
from agl_core.plugins import (
    Blueprint,
    ComponentSpec,
    PluginApiWarning,
    PluginRecord,
    Registry,
    api_remark,
    contract_of,
    get_registry,
    import_named,
)


@dataclass(frozen=True, slots=True)
class Report:
    """What is to be said about a plugin that can be used.

    Attributes:
        warnings: What its author should mend.
        note: A remark; usually empty.
    """

    warnings: tuple[str, ...] = ()
    note: str = ""


def probe(record: PluginRecord, *, build: bool) -> Report:
    """Load a plugin: its spec, and the objects that the spec names.

    Args:
        record: The plugin.
        build: Whether to also build the component, if it needs no options.

    Raises:
        AglError: The plugin is unusable.
    """
    kinds = [each for each in get_registry().of_kind("kind") if each != record]
    registry = Registry([*kinds, record])
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", PluginApiWarning)
        spec = registry.load(record)
        spec.resolve(record)
        note = _build(record, spec) if build and isinstance(spec, ComponentSpec) else ""
    found = [str(each.message) for each in raised if issubclass(each.category, PluginApiWarning)]
    found += filter(None, [api_remark(spec.api), *spec.remarks(record)])
    if not note and registry.kind(record.kind).experimental:
        note = f"the kind {record.kind!r} is experimental"
    return Report(tuple(dict.fromkeys(found)), note)


def _build(record: PluginRecord, spec: ComponentSpec) -> str:
    contract = contract_of(spec.kind)
    model = import_named(record, spec.config) if spec.config else None
    blueprint = Blueprint(spec.factory, record.key, model=model, record=record)
    try:
        blueprint.check()
    except ConfigError as error:
        return f"not built, as it needs options ({error})"
    made = blueprint.build()
    if contract and not isinstance(made, contract):
        raise PluginBrokenError(
            f"{spec.factory} made a {type(made).__name__}, not a {contract.__name__}"
        )
    return ""


def main(report: str, plugin: str, build: str) -> None:
    fields = json.loads(plugin)
    record = PluginRecord(**fields | {"requires": tuple(fields["requires"])})
    start = time.perf_counter()
    status, note = "ok", ""
    try:
        said = probe(record, build=build == "build")
        status = "warning" if said.warnings else "ok"
        note = "; ".join(filter(None, (*said.warnings, said.note)))
    except PluginIncompatibleError as error:
        status, note = "incompatible", str(error)
    except AglError as error:
        status, note = "broken", str(error)
    except BaseException as error:
        status, note = "broken", error_text(error)
    found = {"status": status, "note": note, "seconds": time.perf_counter() - start}
    unfinished = Path(f"{report}.part")  # it may be killed at any time
    unfinished.write_text(json.dumps(found), encoding="utf-8")
    unfinished.replace(report)


if __name__ == "__main__":
    main(*sys.argv[1:])
