"""Writes ``docs/settings.md`` from the code: variables, keys of train files, options of components.

It runs in the development environment, which has every light package: ``python3 dev.py settings``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from agl_cli_kit import setup_logging
from agl_cli_kit.group import PluginGroup
from agl_cli_kit.plugins_command import options_of, type_name
from agl_core import env
from agl_core.plugins import KIND_SPECS, ComponentSpec, get_registry, import_object
from agl_core.trainer import Trainer
from agl_train.file import TrainPlan
from agl_train.keys import LoggingTable, TrainerTable, TrainFile
from agl_train.parts import PARTS
from devtools import packages
from devtools.process import ROOT

PAGE = ROOT / "docs/settings.md"
HEAD = """\
# Settings

`python3 dev.py settings` writes this page from the code.

An argument in Python or an option of a command has precedence over an environment variable. In a
train file, `--set KEY=VALUE` has precedence over the key; `KEY` is a dotted path, such as
`trainer.n_runners` or `store.path`, and `VALUE` is read as TOML, else as text.
"""

TABLES = """\
A table has a `type`, which is a name or a dotted path, and the options below.
[Train files](train-files.md) shows examples."""


def page(without: Collection[str] = ()) -> str:
    """Return the page.

    Args:
        without: Distributions whose options and variables are left out.
    """
    return "\n".join(
        (
            HEAD,
            *(
                "## Environment variables",
                "",
                *_table(("variable", "meaning"), _variables(without)),
                "",
            ),
            *("## Keys of train files", "", *_table(("key", "type", "meaning"), _keys()), ""),
            TABLES,
            "",
            "## Options of components",
            "",
            *_components(without),
        )
    )


def write() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        cells = (re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in row)
        yield f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Turn a docstring's markup into Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`")


# -- environment variables -------------------------------------------------------------------------


def _variables(without: Collection[str]) -> Iterator[tuple[str, str]]:
    meanings = dict(_docstrings_of_members(env.LightningEnvVar))
    commands = get_registry().of_kind("command")
    left_out = {f"agl {record.name}" for record in commands if record.dist in without}
    for command, option in _options_of(PluginGroup("agl"), "agl"):
        if " ".join(command.split()[:2]) in left_out:
            continue
        for name in [option.envvar] if isinstance(option.envvar, str) else option.envvar or ():
            flag = max(option.opts, key=len)
            meanings.setdefault(name, option.help or "")
            meanings[name] += f" `{command} {flag}`."
    for name, meaning in sorted(meanings.items()):
        yield f"`{name}`", _plain(meaning)


def _docstrings_of_members(cls: type) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(definition, ast.ClassDef)
    for member, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(after, ast.Expr):
            (name,) = member.targets
            yield ast.unparse(name), str(ast.literal_eval(after.value))


def _options_of(command: click.Command, path: str) -> Iterator[tuple[str, click.Option]]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield path, parameter
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _options_of(below, f"{path} {name}")


# -- train files -----------------------------------------------------------------------------------


def _keys() -> Iterator[tuple[str, str, str]]:
    of_trainer = _arguments(Trainer)
    meanings = of_trainer | _arguments(TrainPlan)
    meanings |= {key: of_trainer[part.argument] for key, part in PARTS.items()}
    tables: Mapping[str, tuple[type[BaseModel], Mapping[str, str]]] = {
        "trainer": (TrainerTable, of_trainer),
        "logging": (LoggingTable, _arguments(setup_logging)),
    }
    for key, field in TrainFile.model_fields.items():
        if key not in tables:
            shape = "a name or a table" if key in (*PARTS, "agent") else _type(field.annotation)
            yield f"`{key}`", shape, _plain(meanings[key])
            continue
        model, described = tables[key]
        for inner, inner_field in model.model_fields.items():
            yield f"`{key}.{inner}`", _type(inner_field.annotation), _plain(described[inner])


def _arguments(thing: Any) -> dict[str, str]:
    """Return the descriptions of a docstring's arguments and attributes by name."""
    text = inspect.cleandoc(thing.__doc__ or "")
    sections = re.findall(r"^(?:Args|Attributes):\n((?:    .*\n|\n)*)", f"{text}\n", re.MULTILINE)
    entries = re.findall(r"^    (\w+): ((?:.*\n)(?:      .*\n)*)", "".join(sections), re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in entries}


def _type(annotation: Any) -> str:
    name = type_name(annotation)
    return "a text or a list" if name == "Any | None" else f"`{name}`"


# -- components ------------------------------------------------------------------------------------


def _components(without: Collection[str]) -> Iterator[str]:
    own = {packages.core().name, *(package.name for package in packages.light_plugins())}
    own -= set(without)
    registry = get_registry()
    for kind in (name for name, spec in KIND_SPECS.items() if spec.contract):
        for record in registry.of_kind(kind):
            spec = registry.load(record)
            if record.dist not in own or not isinstance(spec, ComponentSpec) or not spec.config:
                continue
            rows = [
                (f"`{name}`", f"`{type_}`", f"`{default}`", _plain(about))
                for name, type_, default, about in options_of(import_object(spec.config))
            ]
            if rows:
                yield f"### {kind}: `{record.name}` ({record.dist})"
                yield ""
                yield from _table(("option", "type", "default", "meaning"), rows)
                yield ""


def main() -> None:
    write()
    print(f"wrote {Path(PAGE).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
