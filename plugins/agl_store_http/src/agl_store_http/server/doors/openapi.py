"""What FastAPI cannot know for the OpenAPI document: bodies, and which tokens may call."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from agl_store_http.server.dependencies import Allow, JsonBody, RawBody
from agl_store_http.server.doors.routing import method_of

__all__ = ["describe_requests"]

_REF = "#/components/schemas/{model}"


def describe_requests(document: dict[str, Any], routes: Iterable[APIRoute]) -> None:
    """Add the request bodies and the scopes of tokens to a document.

    Endpoints read their bodies in a dependency, which FastAPI does not look into.
    """
    bodies: dict[tuple[str, str], JsonBody] = {}
    for route in routes:
        method = method_of(route).lower()
        operation = document["paths"][route.path_format][method]
        for dependant in route.dependant.dependencies:
            need = dependant.call
            if isinstance(need, Allow):
                scopes = ", ".join(["admin", *sorted(need.scopes)])
                operation["description"] = f"With auth on, open to tokens of scope: {scopes}."
                operation["security"] = [{"token": []}, {}]
            elif isinstance(need, JsonBody):
                bodies[route.path_format, method] = need
            elif isinstance(need, RawBody):
                binary = {"schema": {"type": "string", "format": "binary"}}
                content = dict.fromkeys(need.media_types, binary)
                operation["requestBody"] = {"required": False, "content": content}
    schemas, definitions = _input_schemas(bodies, document["components"]["schemas"])
    document["components"]["schemas"] |= definitions
    for (path, method), schema in schemas.items():
        document["paths"][path][method]["requestBody"] = {
            "required": not bodies[path, method].optional,
            "content": {"application/json": {"schema": schema}},
        }


def _input_schemas(
    bodies: dict[tuple[str, str], JsonBody], known: dict[str, Any]
) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return the schema of each body, and the definitions that they refer to."""
    inputs: list[Any] = [(key, "validation", body.adapter) for key, body in bodies.items()]
    made, definitions = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    schemas = {key: schema for (key, _), schema in made.items()}
    shared = [name for name in definitions["$defs"] if name in known]
    if all(definitions["$defs"][name] == known[name] for name in shared):
        return schemas, definitions["$defs"]
    # Some model looks different when it is read and when it is written. Models that hold it then
    # differ too, if only in what they refer to, so all that both sides use get a name per side.
    text = json.dumps([list(schemas.values()), definitions["$defs"]])
    for name in shared:
        text = text.replace(f'"{_REF.format(model=name)}"', f'"{_REF.format(model=name)}-Input"')
    values, defined = json.loads(text)
    renamed = {f"{name}-Input" if name in known else name: value for name, value in defined.items()}
    return dict(zip(schemas, values, strict=True)), renamed
