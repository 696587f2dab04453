"""Makes command-line options from the constructors of classes.

::

    trainer = lightning_cli(Trainer)               # --trainer.n-runners 4
    algorithm, trainer = lightning_cli(APO, Trainer)
"""

from __future__ import annotations

import argparse
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Union, get_args, get_origin

_NULLS: Final = frozenset({"none", "null", "~", "nil"})
_TRUE: Final = frozenset({"yes", "true", "t", "y", "1"})
_FALSE: Final = frozenset({"no", "false", "f", "n", "0"})


def lightning_cli(*classes: type[Any], args: Sequence[str] | None = None) -> Any:
    """Make an instance of each class from options ``--<class>.<parameter>``.

    The class name is in lower case and the parameter name has dashes. Parameters of type str, int,
    float, bool, a Literal or a list of those become options, and so do parameters without a type;
    any other keeps its default. ``none``, ``null``, ``~`` and ``nil`` mean None where None is
    allowed, and None is the default of such a parameter without one. A list takes any number of
    words.

    Args:
        *classes: Classes whose constructors are read.
        args: Words of the command line; by default those of the process.

    Returns:
        The instance, or a tuple of them if there are several classes.

    Raises:
        SystemExit: With code 2 and a line that says why, if the words do not fit.
        TypeError: A parameter has no default, and a word cannot be converted to its type.
    """
    parser = argparse.ArgumentParser()
    for cls in classes:
        _add_options(parser, cls)
    given = vars(parser.parse_args(args))
    made: list[Any] = []
    for cls in classes:
        prefix = f"{cls.__name__.lower()}."
        chosen = {key: value for key, value in given.items() if key.startswith(prefix)}
        made.append(cls(**{key.removeprefix(prefix): value for key, value in chosen.items()}))
    return made[0] if len(made) == 1 else tuple(made)


def _add_options(parser: argparse.ArgumentParser, cls: type[Any]) -> None:
    name = cls.__name__.lower()
    group = parser.add_argument_group(f"options of {cls.__name__}")
    hints = typing.get_type_hints(cls.__init__)
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = hints.get(parameter.name, str)
        no_default = parameter.default is parameter.empty
        required = no_default and type(None) not in get_args(hint)
        default = None if no_default else parameter.default
        convert, is_list = _converter(hint)
        if convert is None:
            if no_default:
                raise TypeError(
                    f"{cls.__name__}: parameter {parameter.name!r} has no default and cannot be "
                    "given on a command line"
                )
            continue
        group.add_argument(
            f"--{name}.{parameter.name.replace('_', '-')}",
            dest=f"{name}.{parameter.name}",
            type=convert,
            required=required,
            nargs="*" if is_list else None,
            # Without the option, the constructor's own default applies.
            default=None if no_default else argparse.SUPPRESS,
            metavar=parameter.name.upper(),
            help="required" if required else f"default: {default!r}".replace("%", "%%"),
        )


def _converter(hint: Any) -> tuple[Callable[[str], Any] | None, bool]:
    """Return a function that converts a word to a type, and whether the type is a list of it."""
    if get_origin(hint) in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        converters = [_converter(member) for member in members]
        usable = [convert for convert, is_list in converters if convert and not is_list]
        if len(members) == 1 and converters[0][1]:
            return converters[0]
        if not usable:
            return None, False
        return _any_of(usable, nullable=len(members) < len(get_args(hint))), False
    if hint in (list, Sequence) or get_origin(hint) in (list, Sequence):
        (member,) = get_args(hint) or (str,)
        convert, nested = _converter(member)
        return (None, False) if nested else (convert, True)
    if get_origin(hint) is Literal:
        return _literal(get_args(hint)), False
    return {str: str, int: int, float: float, bool: _boolean, Any: str}.get(hint), False


def _any_of(converters: Sequence[Callable[[str], Any]], *, nullable: bool) -> Callable[[str], Any]:
    # Every word converts to str, so str is tried last.
    ordered = sorted(converters, key=lambda convert: convert is str)

    def convert(word: str) -> Any:
        if nullable and word.lower() in _NULLS:
            return None
        for attempt in ordered[:-1]:
            try:
                return attempt(word)
            except ValueError:
                continue
        return ordered[-1](word)

    convert.__name__ = "value"
    return convert


def _literal(values: tuple[Any, ...]) -> Callable[[str], Any]:
    by_word = {str(value): value for value in values}

    def choice(word: str) -> Any:
        if word not in by_word:
            raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(by_word)}")
        return by_word[word]

    return choice


def _boolean(word: str) -> bool:
    if word.lower() in _TRUE:
        return True
    if word.lower() in _FALSE:
        return False
    raise ValueError(f"{word!r} is neither yes nor no")
