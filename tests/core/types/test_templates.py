"""Prompt templates from strangers: no access to Python, and bounded output."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agl_core.errors import InvalidArgumentError
from agl_core.types import PromptTemplate


class Task:
    """An argument of a template, beside a secret."""

    def __init__(self) -> None:
        self.name = "n"

    def __format__(self, spec: str) -> str:
        return f"task{spec}"


def fill(template: str, **values: Any) -> str:
    return PromptTemplate(template=template, engine="f-string").format(**values)


@pytest.mark.parametrize(
    "template",
    [
        "{x.__class__}",
        "{x.__init__.__globals__[os].environ}",
        "{x.name}",
        "{x[0].name}",
        "{y:{x.name}}",
        "{x:>1000000000}",
        "{x:{y}}",
        "{x!r:>99999}",
        "{z}" * 40,
    ],
)
def test_fields_that_are_refused(template: str):
    began = time.process_time()
    with pytest.raises(InvalidArgumentError) as caught:
        fill(template, x=Task(), y="1000000000", z="z" * 2**19)
    assert time.process_time() - began < 1
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_fields_that_are_filled():
    values = {"x": {"a": [1, 2]}, "y": "t", "n": 3.14159, "w": 6, "t": Task()}
    filled = fill("{x[a][1]} {y!r} {n:.2f} {y:*^{w}} {t:!} {{}}", **values)
    assert filled == "2 't' 3.14 **t*** task! {}".replace("**t***", f"{'t':*^6}")
    with pytest.raises(KeyError):
        fill("{missing}")
    for malformed in ("{", "{}", "{y[a]}"):
        with pytest.raises(InvalidArgumentError, match="the template cannot be filled: "):
            fill(malformed, y="text")


def test_secrets_are_out_of_reach(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGL_AUTH_TOKEN", "the-secret")
    with pytest.raises(InvalidArgumentError) as caught:
        fill("{x.__init__.__globals__[os].environ}", x=Task())
    assert "the-secret" not in str(caught.value)
