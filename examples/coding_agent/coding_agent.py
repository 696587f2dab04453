"""The agent: a loop over Anthropic's messages protocol with four tools on a folder.

The reward is the share of hidden checks that pass when the agent says that it is done.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from anthropic import Anthropic

import agl_core as agl
from sandbox import Sandbox, SandboxError

__all__ = ["PROMPTS", "TOOLS", "client", "mend"]

PROMPTS = {
    "short": "You mend faults in small Python projects. Make one change and stop.",
    "tests": "You mend faults in small Python projects. Run the tests after each change, and go on "
    "until they pass.",
}
_MAX_TURNS = 12
_MAX_TOKENS = 2_000


def _tool(name: str, description: str, *parameters: str) -> Any:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": [*parameters]}
    return {"name": name, "description": description, "input_schema": schema}


TOOLS = [
    _tool("list_files", "List all files of the project."),
    _tool("read_file", "Return the text of a file.", "path"),
    _tool(
        "replace",
        "Replace old_text, which must occur exactly once in the file, by new_text.",
        *("path", "old_text", "new_text"),
    ),
    _tool("run_tests", "Run the project's tests and return their output."),
]


@agl.rollout
def mend(task: dict[str, Any], prompt_template: agl.PromptTemplate, llm: agl.LLM) -> float:
    """Mend the fault of one project."""
    # Each attempt has its own URL; the proxy has the key.
    here = client().with_options(base_url=llm.endpoint)
    messages: list[Any] = [{"role": "user", "content": task["request"]}]
    with Sandbox(task["files"]) as sandbox:
        for _ in range(_MAX_TURNS):
            reply = here.messages.create(
                model=llm.model,
                max_tokens=_MAX_TOKENS,
                system=prompt_template.format(),
                messages=messages,
                tools=TOOLS,
            )
            messages.append({"role": "assistant", "content": reply.to_dict()["content"]})
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                break
            results = [_result(sandbox, call.id, call.name, call.input) for call in calls]
            messages.append({"role": "user", "content": results})
        report = sandbox.check(task["setup"], task["hidden"])
    agl.emit_message(f"{report.passed} of {report.run} hidden checks pass\n{report.output}")
    return report.passed / report.run


def _result(sandbox: Sandbox, call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """Return the block that answers a tool call; an error is a text for the model."""
    result = {"type": "tool_result", "tool_use_id": call_id}
    try:
        return {**result, "content": use(sandbox, name, arguments)}
    except (SandboxError, KeyError) as error:
        return {**result, "content": f"error: {error}", "is_error": True}


@agl.operation(name="tool")
def use(sandbox: Sandbox, name: str, arguments: Mapping[str, str]) -> str:
    """Do what a tool call asks for.

    Raises:
        SandboxError: It is not possible.
        KeyError: An argument is missing.
    """
    if name == "list_files":
        return sandbox.list_files()
    if name == "read_file":
        return sandbox.read(arguments["path"])
    if name == "replace":
        return sandbox.replace(arguments["path"], arguments["old_text"], arguments["new_text"])
    if name == "run_tests":
        report = sandbox.test()
        return f"{report.passed} of {report.run} tests pass\n{report.output}"
    raise SandboxError(f"there is no tool {name}")


@functools.cache
def client() -> Anthropic:
    # One client per process: creating a client loads the certificates.
    return Anthropic(base_url="http://127.0.0.1", api_key="proxied", timeout=120)
