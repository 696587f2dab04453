"""Code asks a protocol's object what it is, and does not compare its name.

Where it does, adding a protocol would mean a change there, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from agl_core.genai import PROTOCOLS

ROOT = Path(__file__).parents[3]
NAMED = re.compile("[\"'](?:" + "|".join(PROTOCOLS) + ")[\"']")
PROTOCOL = re.compile("protocol|spoken", re.IGNORECASE)
"""In the names of variables that hold a protocol's name."""
CHAT_IS_THE_HUB = "translations go through chat, which is itself not translated"
OWN_SHAPE = "an answer is recorded in the shape of chat, from which text completions differ"
BY_ONE_LIBRARY = "LiteLLM sends text completions with OpenAI's client even to vLLM"
BY_ONE_SERVER = "vLLM takes the tokens of a prompt with chat calls only"
SERVED_TOGETHER = "a server that was recorded with chat also serves OpenAI's other protocols"
OF_ONE_CLIENT = "a test calls the client library of the protocol"
ALLOWED = {
    "agl_core/genai/_translation.py": {"protocol.name == 'chat'": CHAT_IS_THE_HUB},
    "plugins/agl_proxy_direct/src/agl_proxy_direct/model_call.py": {
        "sent.protocol != 'chat'": BY_ONE_SERVER
    },
    "plugins/agl_proxy_litellm/src/agl_proxy_litellm/upstream.py": {
        "protocol != 'completions'": BY_ONE_LIBRARY
    },
    "plugins/agl_replay/src/agl_replay/answers.py": {"protocol == 'completions'": OWN_SHAPE},
    "plugins/agl_replay/src/agl_replay/proxy.py": {"'chat' in spoken": SERVED_TOGETHER},
    "plugins/agl_testing/src/agl_testing/proxy/protocols.py": {
        "protocol == 'messages'": OF_ONE_CLIENT
    },
}
"""Comparisons that stay, by file, with the reason."""


def comparisons(text: str) -> Iterator[str]:
    """Yield the comparisons of a protocol with a name in a module's text."""
    if not NAMED.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            parts = list(ast.walk(node))
            names = [part.id for part in parts if isinstance(part, ast.Name)]
            names += [part.attr for part in parts if isinstance(part, ast.Attribute)]
            values = [part.value for part in parts if isinstance(part, ast.Constant)]
            if any(map(PROTOCOL.search, names)) and set(values) & set(PROTOCOLS):
                yield ast.unparse(node)


def test_comparisons_are_found():
    text = """
if call.protocol == "chat" or protocol not in ("messages", "responses"):
    pass
if "messages" in body or protocol is None or protocol == other:
    pass
"""
    assert [*comparisons(text)] == [
        "call.protocol == 'chat'",
        "protocol not in ('messages', 'responses')",
    ]


def test_protocols_are_told_apart_by_their_objects():
    found: dict[str, set[str]] = {}
    for folder in (ROOT / "agl_core", *(ROOT / "plugins").glob("*/src")):
        for path in folder.rglob("*.py"):
            if made := set(comparisons(path.read_text())):
                found[path.relative_to(ROOT).as_posix()] = made
    assert found == {path: set(reasons) for path, reasons in ALLOWED.items()}
