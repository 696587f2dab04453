"""Query strings to the models of the list routes."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import parse_qsl

from pydantic import ValidationError

from agl_serving.messages import HTTPError, error_details

__all__ = ["parse_query"]


@cache
def _list_fields(model: Any) -> frozenset[str]:
    return frozenset(
        name for name, field in model.model_fields.items() if "list[" in str(field.annotation)
    )


def parse_query(model: Any, query_string: bytes) -> Any:
    """Parse a query string: a repeated key makes a list where the model has one."""
    values: dict[str, Any] = {}
    lists = _list_fields(model)
    for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
        if name in lists:
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise HTTPError(422, error_details(error, "query")) from None
