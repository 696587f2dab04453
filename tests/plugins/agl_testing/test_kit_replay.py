"""The fixture ``agl_replay``: one test per recorded rollout."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agl_core.agent import LitAgent
from agl_core.types import LLM
from agl_replay import Suite, read_recordings, write_suite
from agl_runner import LitAgentRunner
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

AGENT = '''
from typing import Any

import openai

from agl_core.agent import LitAgent


class Asker(LitAgent[Any]):
    """Asks one question about its task."""

    def __init__(self, question: str = "Is {} a city?") -> None:
        super().__init__()
        self.question = question

    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        llm = resources["llm"]
        with openai.OpenAI(base_url=llm.endpoint, api_key="none") as client:
            message: Any = {"role": "user", "content": self.question.format(task)}
            done = client.chat.completions.create(model=llm.model, messages=[message])
        return float(done.choices[0].message.content == "yes")
'''
OPTIONS = ("-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:asyncio")
TESTS = """
import pytest
from asker import Asker

@pytest.mark.agl_suite("suites/cities.jsonl")
def test_same(agl_replay, agl_recording):
    assert agl_replay(Asker()).reward == float(agl_recording.rollout.input == "Paris")

@pytest.mark.agl_suite("suites/cities.jsonl")
def test_changed(agl_replay):
    agl_replay(Asker("Is {} big?"))

@pytest.mark.agl_suite("suites/cities.jsonl")
def test_tolerated(agl_replay):
    assert agl_replay(Asker("Is {} big?"), strict=False).changed_at.startswith("call 1: messages")
"""


async def record(agent: LitAgent[str], base_url: str) -> Suite:
    """Run an agent on two tasks and return their recordings."""
    store = InMemoryLightningStore()
    runner: LitAgentRunner[str] = LitAgentRunner(OtelTracer(), heartbeat_interval=0)
    llm = LLM(endpoint=base_url, model="m")
    with runner.run_context(agent=agent, store=store):
        ids = [
            (await runner.step(task, resources={"llm": llm})).rollout_id
            for task in ("Paris", "the river Po")
        ]
    return Suite((await read_recordings(store, ids))[0])


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    (tmp_path / "asker.py").write_text(AGENT)
    monkeypatch.syspath_prepend(tmp_path)
    from asker import Asker  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    with ScriptedModels([Reply("yes"), Reply("no")]) as models:
        return asyncio.run(record(Asker(), models.base_url))


# `pytester` comes second and its runs are other processes: it takes from `sys.modules` what was
# imported meanwhile, and a second copy of the SDK's HTTP client raises errors that the SDK, which
# holds the first one, does not know.
def test_each_recording_is_a_test(suite: Suite, pytester: pytest.Pytester):
    pytester.makepyfile(asker=AGENT, test_asker=TESTS)
    pytester.mkdir("suites")
    write_suite(pytester.path / "suites" / "cities.jsonl", suite)

    result = pytester.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(passed=4, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*test_changed?Paris?*",
            "call 1 differs from the recorded one:",
            '  - "Is Paris a city?"',
            '  + "Is Paris big?"',
        ]
    )
    assert "test_changed[the river Po]" in result.stdout.str()


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("", 'needs @pytest.mark.agl_suite("suite.jsonl")'),
        ('@pytest.mark.agl_suite("gone.jsonl")', "record it with `agl eval FILE --record SUITE`"),
    ],
)
def test_a_test_without_recordings_is_refused(pytester: pytest.Pytester, mark: str, message: str):
    pytester.makepyfile(f"import pytest\n{mark}\ndef test_it(agl_replay): pass\n")
    result = pytester.runpytest_subprocess(*OPTIONS)
    assert result.ret != 0
    assert message in result.stdout.str() + result.stderr.str()
