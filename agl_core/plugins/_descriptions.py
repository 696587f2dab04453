"""What options mean, read from the source of their model when somebody asks.

pydantic reads docstrings of fields too (``use_attribute_docstrings``), but when a class is made. It
looks for the source frame by frame, which takes 10 to 30 ms for each model that is imported.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from pydantic import BaseModel


def option_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the meaning of each option: the description of its field, else its docstring.

    An option without either has no entry. A class whose source is not there (made by ``exec``, or
    shipped as bytecode) has no docstrings of fields.

    Args:
        model: A config model.
    """
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, BaseModel) and cls is not BaseModel:
            found.update(_docstrings(cls))
    given = {name: field.description for name, field in model.model_fields.items()}
    return {name: text for name, own in given.items() if (text := own or found.get(name))}


def _docstrings(cls: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class with the texts that follow them."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):  # there is no file; or the class is of the interpreter
        return
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef)
    for member, after in zip(definition.body, definition.body[1:], strict=False):
        if not (isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)):
            continue
        match after:
            case ast.Expr(ast.Constant(str(text))):
                yield member.target.id, inspect.cleandoc(text)
            case _:
                pass
