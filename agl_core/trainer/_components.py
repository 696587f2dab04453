"""Defaults and checks of the arguments of a trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from agl_core.algorithm import Run
from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.genai import without_secrets
from agl_core.plugins import get_registry, package_of, remedy
from agl_core.plugins._config import config_model_of
from agl_core.runner import Hook
from agl_core.store import Interceptor, InterceptorLike, as_interceptor
from agl_core.types import NamedResources, Resource


class DefaultStrategy(NamedTuple):
    """The strategy of a trainer that was given none.

    Attributes:
        name: ``cs`` or ``shm``.
        reason: The name and the reason for the choice, for people.
    """

    name: str
    reason: str


def default_strategy() -> DefaultStrategy:
    """Return ``cs`` (processes) if it is installed and usable, else ``shm`` (threads)."""
    found = [record for record in get_registry().of_kind("execution") if record.name == "cs"]
    if any(record.status == "ok" for record in found):
        return DefaultStrategy("cs", "cs, runners as processes")
    why = f"cs is {found[0].status}" if found else "cs is not installed"
    if not found and package_of("execution", "cs"):
        why = f"{remedy('execution', 'cs')} for processes"
    return DefaultStrategy("shm", f"shm, runners as threads ({why})")


def default_adapter() -> str | None:
    """Return ``triplet`` if it is installed and usable; else the run has no adapter."""
    usable = any(record.name == "triplet" for record in get_registry().usable("adapter"))
    return "triplet" if usable else None


def run_class(name: str) -> type[Run]:
    """Return the class of a run of this name; one without a name stores nothing.

    Of several installed classes, one that is not ``stored`` is taken: somebody has installed it on
    purpose.

    Raises:
        PluginError: The run has a name, and no usable package keeps runs.
    """
    if not name:
        return Run
    registry = get_registry()
    others = (record for record in registry.usable("run") if record.name != "stored")
    record = next(others, None) or registry.find("run", "stored")
    return registry.load(record).resolve(record)


def hooks_of(hooks: Hook | Sequence[Hook] | None) -> tuple[Hook, ...]:
    """Return the hooks as a tuple, whether none, one or several were given.

    Raises:
        ConfigError: One of them is not a hook.
    """
    if hooks is None:
        return ()
    given = tuple(hooks) if isinstance(hooks, (list, tuple)) else (hooks,)
    for hook in cast("tuple[object, ...]", given):
        if not isinstance(hook, Hook):
            raise ConfigError(f"{hook!r} is not a Hook; derive it from agl_core.Hook", path="hooks")
    return cast("tuple[Hook, ...]", given)


def interceptors_of(
    interceptors: InterceptorLike | Sequence[InterceptorLike] | None,
) -> tuple[Interceptor, ...]:
    """Return the interceptors as a tuple, whether none, one or several were given.

    Raises:
        ConfigError: One of them is not an interceptor.
    """
    if interceptors is None:
        return ()
    several = cast("Sequence[object]", interceptors)
    given = several if isinstance(interceptors, (list, tuple)) else (interceptors,)
    try:
        return tuple(map(as_interceptor, given))
    except InvalidArgumentError as error:
        raise ConfigError(str(error), path="interceptors") from error


def check_integer(name: str, value: object, *, least: int, most: int | None = None) -> None:
    """Check that an argument is None or an integer within bounds.

    Raises:
        ConfigError: It is not.
    """
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"must be an integer, not {value!r}", path=name)
    if value < least:
        raise ConfigError(f"must be at least {least}, not {value}", path=name)
    if most is not None and value > most:
        raise ConfigError(f"must be at most {most}, not {value}", path=name)


def check_text(name: str, value: object) -> None:
    """Check that an argument is None or a string.

    Raises:
        ConfigError: It is not.
    """
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"must be a string, not {value!r}", path=name)


def check_resources(resources: object) -> NamedResources | None:
    """Check that an argument is None or a mapping of resources, and return it.

    Raises:
        ConfigError: It is not; a text gets the prompt template that was probably meant.
    """
    if resources is None:
        return None
    if not isinstance(resources, Mapping):
        raise ConfigError(
            f"must be a dict of resources by name, not a {type(resources).__qualname__}",
            path="initial_resources",
        )
    for name, resource in cast("Mapping[object, object]", resources).items():
        path = f"initial_resources.{name}"
        if isinstance(resource, str):
            raise ConfigError(
                "is a text, not a resource; write PromptTemplate(template=..., engine='f-string')",
                path=path,
            )
        if not isinstance(resource, Resource):
            kind = type(resource).__qualname__
            said = f"a {kind} is not a resource, such as PromptTemplate or LLM"
            raise ConfigError(said, path=path)
    return cast("NamedResources", resources)


def describe_parts(parts: Mapping[str, object]) -> dict[str, Any]:
    """Return the class and the options of each part of a run, without secrets, as JSON values."""
    return {name: {"type": type(p).__qualname__, **_options_of(p)} for name, p in parts.items()}


def _options_of(part: object) -> dict[str, Any]:
    held = getattr(part, "__dict__", {})
    options = next((held[name] for name in ("config", "_config", "options") if name in held), None)
    if not isinstance(options, BaseModel):  # a class may keep its options as attributes
        model = config_model_of(type(part))
        names = model.model_fields if model else ()
        options = {name: held[name] for name in names if name in held}
    text = to_json(
        options,
        fallback=lambda it: type(it).__name__,
        bytes_mode="base64",
        inf_nan_mode="constants",
    )
    # The user and the password in a URL; a password may contain "@".
    shown = without_secrets(from_json(re.sub(rb"//[^/\s\"]+@", b"//***@", text)))
    return {"config": shown} if shown else {}
