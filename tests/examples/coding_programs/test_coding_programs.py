"""Coding agents from npm and PyPI finish a task through ``agl proxy``, on servers with templates.

Each server plays the chat template of a family of models and refuses what that template refuses.
The programs get no network but the proxy. All that a model samples must be in the store once.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agl_adapter_trajectory import TraceToTrajectory
from agl_core.types import AttemptedRollout, Span
from agl_scripted import TEMPLATES, Reply, ScriptedModels, SeenRequest, TemplateError
from agl_store_http import LightningStoreClient
from program_agent import TASK, run_program
from program_install import Installed, InstallError, MissingInterpreterError, install
from program_model import answer
from programs import PROGRAMS

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

WHERE = Path(__file__).parents[3] / ".envs/programs"
MUST_INSTALL = "AGL_TEST_MUST_INSTALL"
"""Set by devtools/suites.py, where a program that vanished must not pass as a skip."""
MODEL = "gpt-5.5"
"""Codex offers ``apply_patch`` only to models whose names it knows."""
OFFLINE = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9") | {
    "NO_PROXY": "127.0.0.1"
}
"""Nothing listens there."""
SLOW = {"openhands"}
"""Programs whose start takes longer than their task. One server with a strict template is enough
for each, since the translation of their protocol is tested with others."""
TRANSLATED = [name for name, one in PROGRAMS.items() if one.protocol != "chat"]
CASES = [
    (program, template)
    for template in TEMPLATES
    for program in PROGRAMS
    if template == "mistral"
    or (program not in SLOW and (program in TRANSLATED or template == "qwen"))
]
TITLES = {"opencode"}
"""Programs that also ask for a title of the conversation, which is left out by default."""
TITLE_REFUSED = {("opencode", "mistral")}
"""A chat call passes unchanged. This program's call for a title has two messages of the user in a
row, which the template refuses with and without a proxy; the program goes on without a title."""


class Backend:
    """A server with a template, its proxy, and the replies that the server gave."""

    def __init__(self, template: str) -> None:
        self.replies: list[Reply] = []
        self.models = ScriptedModels(self._answer, template=TEMPLATES[template])
        self.base_url = ""

    def _answer(self, seen: SeenRequest) -> Reply:
        reply = answer(seen)
        self.replies.append(reply)
        return reply

    def attempt_url(self, rollout: AttemptedRollout) -> str:
        where = f"/rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}/v1"
        return self.base_url.removesuffix("/v1") + where


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """Run a command of agl that serves; yield its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "agl_cli_kit", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        yield found[0]
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def store_url() -> Iterator[str]:
    with serving("store", "--port", "0") as url:
        yield url


@pytest.fixture(scope="module")
def backends(store_url: str) -> Iterator[dict[str, Backend]]:
    with ExitStack() as stack:
        made: dict[str, Backend] = {}
        for name in TEMPLATES:
            made[name] = backend = Backend(name)
            stack.enter_context(backend.models)
            model = f"{MODEL}={backend.models.base_url}"
            command = ("proxy", "--port", "0", "--model", model, "--store", store_url)
            backend.base_url = stack.enter_context(serving(*command))
        yield made


def program(name: str) -> Installed:
    try:
        return install(PROGRAMS[name], WHERE)
    except InstallError as error:
        if os.environ.get(MUST_INSTALL) and not isinstance(error, MissingInterpreterError):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("error", "must", "outcome"),
    [
        (InstallError, "yes", InstallError),
        (InstallError, "", pytest.skip.Exception),
        (MissingInterpreterError, "yes", pytest.skip.Exception),
    ],
)
def test_a_program_that_cannot_be_installed_fails_in_a_gate(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], must: str, outcome: type[BaseException]
):
    def fail(*_: Any) -> Installed:
        raise error("no")

    monkeypatch.setitem(globals(), "install", fail)
    monkeypatch.setenv(MUST_INSTALL, must)
    with pytest.raises(outcome, match="no"):
        program("codex")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_installed_version_is_the_one_of_the_table(name: str, tmp_path: Path):
    found = program(name)
    unversioned = name in ("mini-swe-agent", "openhands")  # they have no option for it
    package = PROGRAMS[name].package
    about = [found.binary.parent / "pip", "show", package] if unversioned else []
    done = subprocess.run(
        [*map(str, about)] or [str(found.binary), "--version"],
        env=found.environment(tmp_path) | OFFLINE,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(rf"(?<![\d.]){re.escape(PROGRAMS[name].version)}(?![\d.])", done.stdout)


@pytest.mark.parametrize(("name", "template"), CASES)
def test_a_program_finishes_a_task_and_every_sampled_token_is_recorded_once(
    name: str, template: str, store_url: str, backends: dict[str, Backend]
):
    found, backend = program(name), backends[template]
    backend.replies.clear()
    backend.models.requests.clear()

    async def attempt() -> tuple[Any, list[Span]]:
        store = LightningStoreClient(store_url)
        try:
            rollout = await store.start_rollout(input=TASK["request"])
            url = backend.attempt_url(rollout)
            outcome = await asyncio.to_thread(
                run_program, name, found, TASK, url, MODEL, env=OFFLINE
            )
            spans = (await store.query_spans(rollout.rollout_id)).items
            return outcome, list(spans)
        finally:
            await store.close()

    outcome, spans = asyncio.run(attempt())
    assert (outcome.code, outcome.reward) == (0, 1.0), outcome.output
    assert refusals(backend, template) == ((name, template) in TITLE_REFUSED)
    lost: set[str] = set()
    for span in spans:
        named: Any = span.attributes.get("agl.proxy.lost", ())
        lost |= set(named)
    assert sorted(lost) == list(PROGRAMS[name].lost)

    rows, report = TraceToTrajectory(keep_auxiliary=True).adapt_with_report(spans)
    trained = [
        [(row.token_ids[at], row.logprobs[at]) for at in range(*where)]
        for row in rows
        for where in row.responses
    ]
    sampled = [[(token.id, token.logprob) for token in one.tokens] for one in backend.replies]
    assert sorted(trained) == sorted(sampled)
    assert sum(sum(row.mask) for row in rows) == sum(map(len, sampled))
    assert all(row.certificate.ids_present for row in rows)
    assert all(row.certificate.logprobs_present for row in rows), report
    title = name in TITLES and (name, template) not in TITLE_REFUSED
    assert len(rows) == PROGRAMS[name].rows + title, report
    assert len(TraceToTrajectory().adapt(spans)) == PROGRAMS[name].rows, "no title is trained on"


def refusals(backend: Backend, template: str) -> int:
    """Return how many requests the server refused."""
    count = 0
    for seen in backend.models.requests:
        try:
            TEMPLATES[template].prompt(seen.body)
        except TemplateError:
            count += 1
    return count
