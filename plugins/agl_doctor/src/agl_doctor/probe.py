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
from typing import Any

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
    ProviderSpec,
    Registry,
    contract_of,
    import_extension,
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
    spec = Registry([record]).load(record)
    if isinstance(spec, ComponentSpec):
        return _probe_component(record, spec, build)
    if not isinstance(spec, ProviderSpec):  # the spec of a provider names no object
        import_extension(record, spec)
    return ""


def _probe_component(record: PluginRecord, spec: ComponentSpec, build: bool) -> str:
    from pydantic import BaseModel

    contract = contract_of(spec.kind)
    model: Any = import_named(record, spec.config) if spec.config else None
    if model is not None:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise PluginBrokenError(f"{spec.config} is not a pydantic model")
        if model.model_config.get("extra") != "forbid":
            raise PluginBrokenError(
                f'{spec.config} lets unknown options pass: set extra="forbid" in its model_config'
            )
    factory = import_named(record, spec.factory)
    if not callable(factory):
        raise PluginBrokenError(f"{spec.factory} is a {type(factory).__name__} and not a class")
    if isinstance(factory, type) and contract and not issubclass(factory, contract):
        raise PluginBrokenError(f"{spec.factory} is not a {contract.__name__}")
    if not build:
        return ""
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
