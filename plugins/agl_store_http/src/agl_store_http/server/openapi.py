"""The OpenAPI document of the API, made from the table of endpoints, and a page that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import Any, Final, Literal

from pydantic import TypeAdapter
from pydantic_core import to_json

from agl_serving.messages import Response
from agl_store_http.server.api import ENDPOINTS
from agl_store_http.server.endpoints import Endpoint, Request, path_parameters
from agl_store_http.server.schemas import Problem

__all__ = ["DOCUMENTS", "openapi_document"]

_REF: Final = "#/components/schemas/{model}"
Side = Literal["body", "reply"]
Schemas = dict[tuple[Endpoint | None, Side], dict[str, Any]]


@cache
def openapi_document() -> bytes:
    """Return the document as JSON (OpenAPI 3.1)."""
    sides = list(_typed_sides())
    schemas, definitions = TypeAdapter.json_schemas(
        [
            (key, "validation" if key[1] == "body" else "serialization", adapter)
            for key, adapter in sides
        ],
        ref_template=_REF,
    )
    by_side: Schemas = {key: schema for (key, _), schema in schemas.items()}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, by_side)
    return to_json(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "LightningStore Server",
                "version": version("agl-core"),
                "description": "Tasks, spans and tunable resources of agents in training.",
            },
            "paths": paths,
            "components": {
                "schemas": definitions["$defs"],
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _typed_sides() -> Iterator[tuple[tuple[Endpoint | None, Side], TypeAdapter[Any]]]:
    yield (None, "reply"), TypeAdapter(Problem)
    for endpoint in ENDPOINTS:
        if endpoint.body is not None and not endpoint.query:
            yield (endpoint, "body"), TypeAdapter(endpoint.body)
        if endpoint.reply is not None:
            yield (endpoint, "reply"), TypeAdapter(endpoint.reply)


def _operation(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.handler.__module__.rpartition(".")[2].replace("routes", "otlp")],
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint)],
        "responses": _responses(endpoint, schemas),
    }
    if endpoint.creates:
        operation["parameters"].append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "A retry with the same key gets the first call's reply.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 200},
            }
        )
    body = _request_body(endpoint, schemas)
    if body:
        operation["requestBody"] = body
    if endpoint.scopes is not None:
        operation["security"] = [{"token": []}, {}]
        scopes = ", ".join(["admin", *sorted(endpoint.scopes)])
        operation["description"] = f"With auth on, open to tokens of scope: {scopes}."
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    words = re.findall(r"[a-z_]+", endpoint.path.removeprefix("/v1/").removeprefix("agl/"))
    return "_".join([endpoint.method.lower(), *words])


def _path_parameters(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    for name in path_parameters(endpoint.path):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
        }


def _query_parameters(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    if not endpoint.query:
        return
    schema = endpoint.body.model_json_schema()
    for name, field in schema["properties"].items():
        yield {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": field,
        }


def _request_body(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any] | None:
    if endpoint.takes:
        return {
            "required": False,
            "content": {
                kind: {"schema": {"type": "string", "format": "binary"}} for kind in endpoint.takes
            },
        }
    schema = schemas.get((endpoint, "body"))
    if schema is None:
        return None
    return {
        "required": not endpoint.body_optional,
        "content": {"application/json": {"schema": schema}},
    }


def _responses(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    reply: dict[str, Any] = {"description": endpoint.summary}
    schema = schemas.get((endpoint, "reply"))
    if schema is not None:
        reply["content"] = {endpoint.produces: {"schema": schema}}
    elif endpoint.produces != "application/json":
        reply["content"] = {endpoint.produces: {}}
    problem = {"application/json": {"schema": schemas[None, "reply"]}}
    if endpoint.takes:
        problem |= {"application/x-protobuf": {}}
    return {
        str(endpoint.status): reply,
        "default": {"description": "What went wrong", "content": problem},
    }


# -- the documents as endpoints --------------------------------------------------------------------


async def _openapi(_: Request) -> bytes:
    return openapi_document()


async def _docs(_: Request) -> Response:
    return Response(200, _PAGE, ((b"content-type", b"text/html; charset=utf-8"),))


_PAGE: Final = b"""<!doctype html>
<title>LightningStore Server</title>
<link rel="stylesheet" href="https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui.css">
<div id="ui"></div>
<script src="https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({url: "/openapi.json", dom_id: "#ui"})</script>
"""

DOCUMENTS: Final = (
    Endpoint("GET", "/openapi.json", _openapi, "This document", None),
    Endpoint("GET", "/docs", _docs, "This document as a page", None, produces="text/html"),
)
"""Served beside the API, and not part of it."""
