"""Merges a user's dict over verl's configuration, by the rules of verl's command line."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from agl_core.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["filled_tables", "first_line", "merge"]


def filled_tables(config: DictConfig) -> frozenset[str]:
    """Return the paths of the tables that have keys; all others take any key."""
    return frozenset(_filled(config, ""))


def _filled(node: DictConfig, path: str) -> Generator[str]:
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    if not node:
        return
    yield path
    for key in node:
        try:
            value = node.get(key)
        except OmegaConfBaseException:  # it refers to a value that the user has yet to give
            continue
        if isinstance(value, DictConfig):
            yield from _filled(value, _join(path, str(key)))


def merge(
    node: DictConfig,
    values: Mapping[str, Any],
    filled: frozenset[str],
    *,
    path: str = "",
    label: str = "",
) -> None:
    """Merge a plain dict into a configuration in place.

    Args:
        node: The configuration, or a table in it.
        values: What goes over it. ``+`` or ``++`` before a key adds it.
        filled: The tables of verl's own configuration that have keys.
        path: Path of ``node``.
        label: What errors put before a path.

    Raises:
        ConfigError: A key is unknown, or a value does not fit.
    """
    from omegaconf import DictConfig, open_dict
    from omegaconf.errors import OmegaConfBaseException

    for key, value in values.items():
        name = _bare(key)
        where = _join(path, name)
        adds = path not in filled or name != str(key)
        try:
            known = node.get(name) if name in node else None
            if isinstance(value, Mapping) and isinstance(known, DictConfig):
                merge(known, value, filled, path=where, label=label)
            elif where in filled and not _may_replace_table(value):
                raise ConfigError(f"must be a table, not {value!r}", path=_join(label, where))
            elif adds:
                with open_dict(node):
                    node[name] = _plain(value)
            else:
                node[name] = _plain(value)
        except OmegaConfBaseException as error:
            raise ConfigError(first_line(error), path=_join(label, where)) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def _may_replace_table(value: Any) -> bool:
    """Return whether a value is a table, none at all, or a reference to another one."""
    return value is None or isinstance(value, Mapping) or (isinstance(value, str) and "$" in value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_bare(key): _plain(item) for key, item in value.items()}
    return value


def _bare(key: Any) -> str:
    """Return a key without Hydra's marks: ``+`` adds it, ``++`` adds or changes it."""
    return str(key).lstrip("+")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
