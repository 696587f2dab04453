"""The coding agent: its folder, its rewards, and its calls in Anthropic's protocol."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agl_core as agl
import sandbox as sandbox_module
from agl_runner import LitAgentRunner
from agl_scripted import Reply, Script, ScriptedModels, ToolCall, real_or_scripted
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer
from coding_agent import PROMPTS, client, mend, use
from coding_model import answer
from coding_tasks import TASKS
from sandbox import Sandbox, SandboxError

MAIN = Path(__file__).parents[3] / "examples" / "coding_agent" / "main.py"
CHECKS = [["code_a.f()", 3], ["code_a.f() - 1", 2]]
FORGED = "import os; print('{}', flush=True); os._exit(0)"
EQUAL = (
    "class f(float):\n    def __eq__(self, other): return True\n"
    "    def __sub__(self, other): return self"
)
NOSY = (
    "import os, sys\nassert 'ANTHROPIC_API_KEY' not in os.environ\n"
    "assert '3' not in str(sys.argv[2:])\ndef f(): return 3"
)
"""Code that fails if it sees a key or a right value."""


@pytest.fixture(scope="module", autouse=True)
def closed_client() -> Iterator[None]:
    yield
    client().close()


@pytest.mark.parametrize("path", ["../out.txt", "/etc/hostname", "link/out.txt", "a/../../out.txt"])
def test_file_tools_stay_in_the_folder(path: str, tmp_path: Path):
    (tmp_path / "out.txt").write_text("secret")
    with Sandbox({"a/one.txt": "inside"}) as sandbox:
        root = sandbox._root
        (root / "link").symlink_to(tmp_path)
        with pytest.raises(SandboxError):
            sandbox.read(path)
        with pytest.raises(SandboxError):
            sandbox.replace(path, "secret", "changed")
        assert sandbox.read("a/one.txt") == "inside"
    assert not root.exists()
    assert (tmp_path / "out.txt").read_text() == "secret"


def test_a_text_is_replaced_only_if_it_occurs_once():
    with Sandbox({"one.txt": "a b b"}) as sandbox:
        for old, count in (("b", 2), ("c", 0), ("", 0)):
            with pytest.raises(SandboxError, match="must once"):
                sandbox.replace("one.txt", old, "x")
            assert count == "a b b".count(old) or not old
        sandbox.replace("one.txt", "a", "c")
        assert sandbox.read("one.txt") == "c b b"


@pytest.mark.parametrize(
    ("code", "passed"),
    [
        ("def f(): return 3.0", 2),
        ("def f(n=[4]): n[0] -= 1; return n[0]", 1),
        ("def f(): return {3}", 0),
        ("raise ValueError", 0),
        ("import os; os._exit(0)", 0),
        ("while True: pass", 0),
        (FORGED.format([2, 0]), 0),
        (FORGED.format([1, -9]), 0),
        (FORGED.format([True, True]), 0),
        (FORGED.format([3]), 0),
        (EQUAL, 0),
        (NOSY, 2),
    ],
)
def test_only_right_values_pass(code: str, passed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    if "while" in code:
        monkeypatch.setattr(sandbox_module, "_SECONDS", 0.5)
    with Sandbox({"code_a.py": code}) as sandbox:
        report = sandbox.check("import code_a", CHECKS)
        assert (report.run, report.passed) == (2, passed), report.output
        assert sandbox.list_files() == "code_a.py"


@pytest.mark.parametrize("result", ["", "[]", "[1]", '["a", 1]', "{}"])
def test_a_run_of_tests_without_a_result_passed_nothing(result: str):
    with Sandbox({"test_a.py": FORGED.format(result)}) as sandbox:
        assert sandbox.test().passed == 0


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["name"])
def test_tests_and_checks_of_every_task_fail_at_first(task: dict[str, Any]):
    with Sandbox(task["files"]) as sandbox:
        own, hidden = sandbox.test(), sandbox.check(task["setup"], task["hidden"])
    assert own.run > 0 == own.passed
    assert 0 < hidden.passed < hidden.run


async def attempt(task: dict[str, Any], prompt: str, script: Script) -> tuple[float, list[Any]]:
    """Return the reward of one rollout, and the requests that the model saw."""
    store = InMemoryLightningStore()
    runner = LitAgentRunner[Any](OtelTracer())
    with ScriptedModels(script) as models:
        resources: agl.NamedResources = {
            "llm": agl.LLM(endpoint=models.base_url, model="m"),
            "prompt": agl.PromptTemplate(template=PROMPTS[prompt], engine="f-string"),
        }
        with runner.run_context(agent=mend, store=store):
            rollout = await runner.step(task, resources=resources)
    spans = (await store.query_spans(rollout.rollout_id)).items
    await store.close()
    reward = agl.find_final_reward(spans)
    assert reward is not None
    return reward, models.requests


async def test_an_error_of_a_tool_goes_to_the_model_and_the_agent_goes_on():
    calls = [
        ToolCall("read_file", {"path": "../x"}, id="toolu_1"),
        ToolCall("replace", {"path": "stats.py"}, id="toolu_2"),
    ]
    script = [Reply(tool_calls=calls), Reply("I give up.")]
    reward, requests = await attempt(TASKS[0], "short", script)
    assert reward == pytest.approx(2 / 3)  # that of the project as it was
    results = requests[1].body["messages"][2]["content"]
    assert [(r["tool_use_id"], r["is_error"]) for r in results] == [
        ("toolu_1", True),
        ("toolu_2", True),
    ]
    assert "outside of the project" in results[0]["content"]
    assert requests[0].path.endswith("/v1/messages")
    assert len(requests[0].body["tools"]) == 4


@pytest.mark.parametrize(("prompt", "reward"), [("short", 0.5), ("tests", 1.0)])
async def test_failing_tests_make_the_agent_try_again(prompt: str, reward: float):
    (slug,) = [task for task in TASKS if task["name"] == "slug"]
    assert (await attempt(slug, prompt, answer))[0] == reward


def test_an_unknown_tool_is_an_error():
    with Sandbox({}) as sandbox, pytest.raises(SandboxError, match="no tool delete"):
        use.__wrapped__(sandbox, "delete", {})


@pytest.mark.slow
def test_the_prompt_that_asks_for_tests_earns_more():
    main = runpy.run_path(str(MAIN))
    with real_or_scripted(answer, "m", provider="anthropic", environ={}) as model:
        rows = [row for prompt in PROMPTS for row in main["measure"](model, prompt)]
    assert [(row["reward"], row["calls"]) for row in rows] == [
        *((1.0, 4), (0.5, 4), (1.0, 4), (0.75, 4)),
        *((1.0, 5), (1.0, 9), (1.0, 5), (0.75, 5)),
    ]
    assert all(row["tokens"] > 100 for row in rows)
