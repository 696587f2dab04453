"""Texts that are no token, whatever they hold."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest

from agl_serving import TokenVerifier, is_token, mint_token

SECRET = "0123456789abcdef"


def encoded(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


HEAD = json.dumps({"alg": "HS256", "typ": "JWT"}, separators=(",", ":")).encode()
DEEP = b'{"a":' + b"[" * 9000 + b"]" * 9000 + b"}"


@pytest.mark.parametrize("parts", [(DEEP, b"{}"), (HEAD, DEEP)])
def test_a_token_nested_too_deeply_is_none(parts: tuple[bytes, bytes]):
    token = f"{encoded(parts[0])}.{encoded(parts[1])}.{encoded(b'signature')}"
    assert TokenVerifier(SECRET).identify(token.encode()) is None
    assert not is_token(token)


def test_a_library_that_gives_up_on_deep_json_refuses_the_token(monkeypatch: pytest.MonkeyPatch):
    def decode(*_: Any, **__: Any) -> Any:  # as older versions of PyJWT do
        raise RecursionError

    token = mint_token(SECRET, "read", lifetime=60)
    monkeypatch.setattr(jwt, "decode", decode)
    assert TokenVerifier(SECRET).identify(token.encode()) is None
    assert not is_token(token)
