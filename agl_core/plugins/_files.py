"""Reads configuration files: TOML, YAML or JSON files that hold one table."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from agl_core.errors import ConfigError

CONFIG_SUFFIXES: Final = (".toml", ".yaml", ".yml", ".json")


def read_config_file(file: str | Path, *, path: str = "") -> dict[str, Any]:
    """Return the table in a file.

    Args:
        file: The file; its suffix, one of :data:`CONFIG_SUFFIXES`, determines the format.
        path: Path in a configuration that names the file, for messages.

    Raises:
        ConfigError: The file is unreadable or malformed (the message has the line), or does not
            hold a table.
    """
    file = Path(file)
    suffix = file.suffix.lower()
    if suffix not in CONFIG_SUFFIXES:
        known = ", ".join(CONFIG_SUFFIXES)
        raise ConfigError(f"{file} is not one of {known}", path=path)
    try:
        text = file.read_text(encoding="utf-8-sig")  # editors of Windows write a mark first
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{file} cannot be read: {reason}", path=path) from error
    parse = {".toml": _toml, ".json": _json}.get(suffix, _yaml)
    try:
        data = parse(text, file, path)
    except RecursionError as error:
        raise ConfigError(f"{file} is nested too deeply", path=path) from error
    if not isinstance(data, dict):
        raise ConfigError(
            f"{file} holds {_article(data)} and not a table of keys and values", path=path
        )
    table = cast("dict[object, Any]", data)
    for key in table:
        if not isinstance(key, str):
            raise ConfigError(f"{file} has the key {key!r}, which is not a string", path=path)
    return cast("dict[str, Any]", table)


def _toml(text: str, file: Path, path: str) -> object:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # The message ends with "(at line 3, column 7)", or "(at end of document)".
        raise ConfigError(f"{file} is not valid TOML: {error}", path=path) from error


def _json(text: str, file: Path, path: str) -> object:
    import json

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{file} has the key {twice!r} twice in one object", path=path)
        return made

    try:
        return json.loads(text, object_pairs_hook=table)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file} is not valid JSON: {error}", path=path) from error


def _yaml(text: str, file: Path, path: str) -> object:
    import yaml

    try:
        return yaml.load(text, _unique_keys_loader())  # noqa: S506 -- derived from SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (at line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        what = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError(f"{file} is not valid YAML: {what}{where}", path=path) from error


@cache
def _unique_keys_loader() -> Any:
    """Return PyYAML's safe loader that refuses keys which a mapping has twice, as YAML 1.2 does.

    PyYAML keeps the last of them: https://github.com/yaml/pyyaml/issues/165
    """
    import yaml
    from yaml.composer import ComposerError

    class Loader(yaml.SafeLoader):
        # Of the nodes, not of the constructed values, which have the merged keys of ``<<``, too.
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            lines: dict[tuple[str, str], int] = {}
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                    continue
                name = (key.tag, key.value)
                if name in lines:
                    said = f"the key {key.value!r} is in line {lines[name]} already"
                    raise ComposerError(None, None, said, key.start_mark)
                lines[name] = key.start_mark.line + 1
            return node

    return Loader


def _article(data: object) -> str:
    return {"list": "a list", "str": "a text", "NoneType": "nothing"}.get(
        type(data).__name__, f"a {type(data).__name__}"
    )
