"""The commands ``agl plugins list``, ``show`` and ``trace``; plugins add others, as ``doctor``."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from agl_cli_kit.group import PluginGroup
from agl_cli_kit.kinds import kind_option
from agl_cli_kit.output import print_json, print_table
from agl_cli_kit.trace_command import trace
from agl_core.errors import ConfigError, PluginNotFoundError
from agl_core.plugins import (
    ComponentSpec,
    PluginRecord,
    Registry,
    Spec,
    did_you_mean,
    get_registry,
    import_named,
    known_names,
    package_of,
    remedy,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _Plugins(PluginGroup):
    prefix = "plugins."


@click.group(cls=_Plugins, epilog="Example: agl plugins list --kind store")
def plugins() -> None:
    """List, describe and check plugins."""


plugins.add_command(trace)


@plugins.command("list", epilog="Example: agl plugins list --kind algorithm --all")
@_JSON
@kind_option
@click.option("--all", "with_known", is_flag=True, help="Also list plugins that can be installed.")
def list_(as_json: bool, kind: str | None, with_known: bool) -> None:
    """List the installed plugins and what is known to be wrong with them.

    Reads metadata only and imports no plugin; see `agl plugins doctor` for the rest.
    """
    registry = get_registry()
    records = [record for record in registry.records if kind in (None, record.kind)]
    if as_json:
        rows = [record.as_json() for record in records]
        print_json(rows + (_known(registry, kind) if with_known else []))
        return
    cells = [[r.kind, r.name, r.status, r.dist, r.version, r.error] for r in records]
    if with_known:
        cells += [
            [k["kind"], k["name"], k["status"], k["dist"], "", k["error"]]
            for k in _known(registry, kind)
        ]
    print_table(["kind", "name", "status", "distribution", "version", "note"], cells)


def _known(registry: Registry, kind: str | None) -> list[dict[str, Any]]:
    """Return rows for the plugins that the catalogues list and that are not installed."""
    installed = {record.key for record in registry.records}
    return [
        {
            "kind": of_kind,
            "name": name,
            "status": "not installed",
            "dist": package_of(of_kind, name),
            "error": remedy(of_kind, name),
        }
        for of_kind in registry.kinds
        for name in known_names(of_kind)
        if kind in (None, of_kind) and f"{of_kind}.{name}" not in installed
    ]


@plugins.command(epilog="Example: agl plugins show store.memory --json")
@click.argument("name")
@_JSON
@kind_option
def show(name: str, as_json: bool, kind: str | None) -> None:
    """Describe the plugin NAME (`memory`, `store.memory` or `distribution:name`) and its options.

    With --json, `config` is the JSON schema of the options.
    """
    registry = get_registry()
    record = _find(registry, name, kind)
    spec = registry.load(record)
    model = _config_model(record, spec)
    if as_json:
        described = asdict(spec)
        if isinstance(spec, ComponentSpec):
            described["capabilities"] = sorted(spec.capabilities)
        print_json({"plugin": record.as_json(), "spec": described, "config": _schema(model)})
        return
    facts = asdict(spec) | {"distribution": record.origin, "status": record.status}
    if isinstance(spec, ComponentSpec):
        facts["capabilities"] = ", ".join(sorted(spec.capabilities))
    for key, value in facts.items():
        if value:
            click.echo(f"{key + ':':<14}{value}")
    if model is not None:
        click.echo("")
        print_table(["option", "type", "default", "description"], options_of(model))


def _find(registry: Registry, name: str, kind: str | None) -> PluginRecord:
    if kind is None and ":" not in name and "." in name:
        kind, _, name = name.partition(".")
    if kind is not None:
        return registry.find(kind, name)
    bare = name.rpartition(":")[2]
    all_ = registry.kinds
    kinds = [k for k in all_ if any(record.name == bare for record in registry.of_kind(k))]
    kinds = kinds or [k for k in all_ if bare in known_names(k)]
    # A component and its doctor check often share a name; the component is meant.
    kinds = [k for k in kinds if registry.kind(k).contract] or kinds
    if len(kinds) > 1:
        which = ", ".join(f"{k}.{bare}" for k in kinds)
        raise ConfigError(f"{bare!r} could be {which}: say which, or give --kind")
    if not kinds:
        names = {record.name for record in registry.records}
        guess = did_you_mean(bare, names.union(*map(known_names, all_)))
        hint = guess or "; see `agl plugins list --all`"
        raise PluginNotFoundError(f"no plugin {name!r} is installed{hint}")
    return registry.find(kinds[0], name)


def _config_model(record: PluginRecord, spec: Spec) -> type[BaseModel] | None:
    if not isinstance(spec, ComponentSpec) or not spec.config:
        return None
    return import_named(record, spec.config)


def _schema(model: type[BaseModel] | None) -> dict[str, Any] | None:
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
    from pydantic_core.core_schema import ModelSchema

    from agl_core.plugins import option_descriptions

    class Lenient(GenerateJsonSchema):
        """Gives an option that only Python code can set (such as a function) an empty schema."""

        def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
            made = super().model_schema(schema)
            for name, text in option_descriptions(schema["cls"]).items():
                made["properties"].get(name, {}).setdefault("description", text)
            return made

        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
            return {}

    return model.model_json_schema(schema_generator=Lenient) if model else None


def options_of(model: type[BaseModel]) -> list[list[str]]:
    """Return name, type, default and description of each option of a component, for people."""
    from pydantic_core import PydanticUndefined

    from agl_core.plugins import option_descriptions

    rows: list[list[str]] = []
    descriptions = option_descriptions(model)
    for name, field in model.model_fields.items():
        if field.default_factory is not None:
            default = "(new each time)"
        elif field.default is PydanticUndefined:
            default = "(required)"
        else:
            default = repr(getattr(field.default, "value", field.default))  # of an enum: its value
        about = " ".join(descriptions.get(name, "").split())
        rows.append([name, type_name(field.annotation), default, about])
    return rows


def type_name(annotation: Any) -> str:
    """Return a type as people write it: without modules and without pydantic's validators."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(members[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_name, members))
    if origin in (dict, list, tuple, Mapping, Sequence):
        return f"{origin.__name__}[{', '.join(map(type_name, members))}]"
    if annotation in (None, type(None), ...):
        return "..." if annotation is ... else "None"
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", inspect.formatannotation(annotation))
