"""Unchanged coding agents from npm and PyPI: versions, protocols, settings.

Each program is started without a change, in a home folder of its own, with the proxy's URL as the
address of its model. A program that talks to its maker's services has that switched off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["PROGRAMS", "Command", "Program", "Start", "table"]

_KEY = "proxied"
"""The proxy has the real key; a program only wants one that is not empty."""


@dataclass(frozen=True, slots=True)
class Start:
    """Input of a program's command.

    Attributes:
        folder: The project that it works on.
        home: Its home folder, for its settings.
        base_url: URL of the model, which ends with ``/v1``.
        model: Name of the model there.
        request: The task, as a user writes it.
        files: Names of the project's files.
    """

    folder: Path
    home: Path
    base_url: str
    model: str
    request: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """Arguments of a program, and the variables that it needs."""

    arguments: list[str]
    env: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Program:
    """A coding agent, and what is known of it.

    Attributes:
        title: Its name.
        package: Its package.
        version: The version that the tests run.
        registry: Where the package is.
        binary: Name of the command; of a library, that of the interpreter that runs a script.
        protocol: The model protocol that it speaks.
        node: Oldest major version of Node.js that it runs on; 0 if it needs none.
        python: Oldest minor version of Python 3 that it runs on; 0 if it needs none.
        others: Further packages of the same version.
        lost: What ``agl.proxy.lost`` names in its calls if the backend speaks chat.
        rows: Rows of tokens that the example's task becomes. They are more than one if the program
            changes an earlier call of the model before it sends it again.
        command: Writes its settings and returns how to start it.
    """

    title: str
    package: str
    version: str
    registry: Literal["npm", "PyPI"]
    binary: str
    protocol: Literal["chat", "responses", "messages"]
    command: Callable[[Start], Command]
    node: int = 0
    python: int = 0
    others: tuple[str, ...] = ()
    rows: int = 1
    lost: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Name of the folder that it is installed in."""
        return f"{self.package if self.binary == 'python' else self.binary}-{self.version}"


def _codex(start: Start) -> Command:
    settings = start.home / ".codex"
    settings.mkdir()
    (settings / "config.toml").write_text(
        f'model = "{start.model}"\n'
        'model_provider = "agl"\n'
        "[model_providers.agl]\n"
        'name = "agl"\n'
        f'base_url = "{start.base_url}"\n'
        'wire_api = "responses"\n'
        'env_key = "AGL_KEY"\n'
    )
    # The sandbox of the program needs rights that containers often do not give.
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Command(["exec", *options, start.request], {"AGL_KEY": _KEY})


def _claude_code(start: Start) -> Command:
    options = ["--model", start.model, "--allowedTools", "Read,Edit,Write,Bash"]
    env = {
        "ANTHROPIC_BASE_URL": start.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": _KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return Command(["--print", *options, "--", start.request], env)


def _opencode(start: Start) -> Command:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "agl",
        "options": {"baseURL": start.base_url, "apiKey": _KEY},
        "models": {start.model: {"name": start.model}},
    }
    settings = {"provider": {"agl": provider}, "share": "disabled", "autoupdate": False}
    file = start.home / "opencode.json"
    file.write_text(json.dumps(settings))
    switches = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    env = {f"OPENCODE_DISABLE_{name}": "1" for name in switches}
    arguments = ["run", "--model", f"agl/{start.model}", start.request]
    return Command(arguments, {"OPENCODE_CONFIG": str(file), **env})


def _qwen_code(start: Start) -> Command:
    options = ["--approval-mode", "yolo", "--auth-type", "openai", "--model", start.model]
    env = {"QWEN_TELEMETRY_ENABLED": "false", "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1"}
    return Command([*options, "--prompt", start.request], _openai(start) | env)


def _mini_swe_agent(start: Start) -> Command:
    env = {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
    }
    options = ["--model", f"openai/{start.model}", "--yolo", "--exit-immediately"]
    saved = ["--output", str(start.home / "trajectory.json")]
    return Command([*options, *saved, "--task", start.request], _litellm(start) | env)


def _aider(start: Start) -> Command:
    options = ["--edit-format", "diff", "--no-git", "--yes-always"]
    quiet = ["--no-check-update", "--no-analytics", "--no-show-model-warnings"]
    model = ["--model", f"openai/{start.model}"]
    request = ["--message", start.request, *start.files]
    return Command([*model, *options, *quiet, *request], _litellm(start))


def _openhands(start: Start) -> Command:
    script = Path(__file__).with_name("openhands_program.py")
    arguments = [str(script), start.model, start.base_url, _KEY, start.request]
    return Command(arguments, {"OPENHANDS_SUPPRESS_BANNER": "1", **_litellm(start)})


def _openai(start: Start) -> dict[str, str]:
    return {"OPENAI_BASE_URL": start.base_url, "OPENAI_API_KEY": _KEY}


def _litellm(start: Start) -> dict[str, str]:
    more = {"OPENAI_API_BASE": start.base_url, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return _openai(start) | more


PROGRAMS: dict[str, Program] = {
    "codex": Program(
        "Codex CLI",
        "@openai/codex",
        "0.171.0",
        "npm",
        "codex",
        "responses",
        _codex,
        node=16,
        lost=("tools.tool_search", "tools.web_search"),
    ),
    "claude-code": Program(
        "Claude Code",
        "@anthropic-ai/claude-code",
        "2.1.332",
        "npm",
        "claude",
        "messages",
        _claude_code,
        node=22,
        rows=2,  # a call of Edit comes back with "replace_all": false
        lost=(
            "cache_control",
            "context_management",
            "messages.role",
            "output_config.effort",
            "thinking",
        ),
    ),
    "opencode": Program(
        "OpenCode", "opencode-ai", "1.18.33", "npm", "opencode", "chat", _opencode, node=16
    ),
    "qwen-code": Program(
        "Qwen Code", "@qwen-code/qwen-code", "0.24.4", "npm", "qwen", "chat", _qwen_code, node=22
    ),
    "mini-swe-agent": Program(
        "mini-swe-agent", "mini-swe-agent", "2.4.6", "PyPI", "mini", "chat", _mini_swe_agent
    ),
    "aider": Program("aider", "aider-chat", "0.86.2", "PyPI", "aider", "chat", _aider),
    "openhands": Program(
        "OpenHands' SDK",
        "openhands-sdk",
        "1.58.2",
        "PyPI",
        "python",
        "responses",
        _openhands,
        python=12,
        others=("openhands-tools",),
    ),
}
"""The programs by their short names."""


def table(programs: Iterable[Program] = PROGRAMS.values()) -> str:
    """Return the programs as a table of Markdown."""
    rows = [
        "| program | package | version | protocol | rows | left out on a chat backend |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in programs:
        lost = ", ".join(f"`{name}`" for name in one.lost) or "-"
        cells = (one.title, f"{one.registry}: `{one.package}`", one.version, one.protocol)
        rows.append(f"| {' | '.join([*cells, str(one.rows), lost])} |")
    return "\n".join(rows)
