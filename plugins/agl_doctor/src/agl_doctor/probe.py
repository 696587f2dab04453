"""Loads one plugin and reports: ``python -m agl_doctor.probe REPORT PLUGIN build|import``.

``PLUGIN`` is the plugin's record as JSON. The result is written to the file ``REPORT`` as JSON. The
caller (:mod:`agl_doctor.examine`) sets the time limit; a missing report tells it that the
plugin ended the process.
"""

from __future__ import annotations

import json
import sys
import time
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
    PluginRecord,
    Registry,
    contract_of,
    get_registry,
    import_named,
)


def probe(record: PluginRecord, *, build: bool) -> str:
    """Load a plugin: its spec, and the objects that the spec names.

    Args:
        record: The plugin.
        build: Whether to also build the component, if it needs no options.

    Returns:
        A remark about the plugin; usually empty.

    Raises:
        AglError: The plugin is unusable.
    """
    kinds = [each for each in get_registry().of_kind("kind") if each != record]
    registry = Registry([*kinds, record])
    spec = registry.load(record)
    spec.resolve(record)
    return _build(record, spec) if build and isinstance(spec, ComponentSpec) else ""


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
        note = probe(record, build=build == "build")
    except PluginIncompatibleError as error:
        status, note = "incompatible", str(error)
    except AglError as error:
        status, note = "broken", str(error)
    except BaseException as error:
        status, note = "broken", error_text(error)
    found = {"status": status, "note": note, "seconds": time.perf_counter() - start}
    Path(report).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
