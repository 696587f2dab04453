"""Secrets in the bodies of requests are not described."""

from __future__ import annotations

from agl_core.genai import loads, request_attributes, without_secrets


def test_keys_are_redacted_at_any_depth():
    servers = [{"url": "http://mcp", "authorization_token": "sk-1", "name": "docs"}]
    found = request_attributes({"api_key": "sk-2", "mcp_servers": servers, "temperature": 0.5})
    assert found.pop("gen_ai.request.api_key") == "[redacted]"
    assert loads(found.pop("gen_ai.request.mcp_servers").encode()) == [
        {"url": "http://mcp", "authorization_token": "[redacted]", "name": "docs"}
    ]
    assert found == {"gen_ai.request.temperature": 0.5}


def test_headers_of_tools_are_redacted():
    tools = [{"type": "mcp", "headers": {"Authorization": "Bearer x", "X-API-Key": "y", "a": "b"}}]
    found = request_attributes({"tools": tools})
    (tool,) = loads(found["gen_ai.tool.definitions"].encode())
    headers = {"Authorization": "[redacted]", "X-API-Key": "[redacted]", "a": "b"}
    assert tool == {"type": "mcp", "headers": headers}


def test_a_schema_with_a_password_is_kept():
    schema = {"properties": {"password": {"type": "string"}, "max_tokens": {"type": "integer"}}}
    assert without_secrets({"parameters": schema, "stop_token": "x"}) == {
        "parameters": schema,
        "stop_token": "x",
    }
