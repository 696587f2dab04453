from __future__ import annotations

import inspect
import logging
import pickle
import subprocess
import sys
import textwrap
from typing import Any

import cloudpickle
import pytest

from agl_core.agent import FunctionalLitAgent, LitAgent, llm_rollout, prompt_rollout, rollout
from agl_core.errors import AgentSignatureError, AglError
from agl_core.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    NamedResources,
    PromptTemplate,
    ProxyLLM,
    Rollout,
)

LLM_A = LLM(endpoint="http://a/v1", model="a")
LLM_B = LLM(endpoint="http://b/v1", model="b")
PROXY = ProxyLLM(endpoint="http://proxy/v1", model="p", api_key="k")
PROMPT = PromptTemplate(template="Hi {name}", engine="f-string")


def _attempted() -> AttemptedRollout:
    return AttemptedRollout(
        rollout_id="ro-1",
        input={},
        start_time=1.0,
        attempt=Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=1.0),
    )


@rollout
def module_agent(task: str, llm: LLM, times: int = 2) -> str:
    """Repeat the task."""
    return f"{llm.model}:{task * times}"


# -- signatures ----------------------------------------------------------------------------------


def test_rollout_takes_either_rule() -> None:
    @rollout
    def with_llm(task: Any, llm: LLM) -> None: ...

    @rollout
    def with_prompt(task: Any, prompt_template: PromptTemplate) -> None: ...

    @rollout
    def with_neither(task: Any, rollout: Any) -> None: ...

    for agent in (with_llm, with_prompt, with_neither):
        assert isinstance(agent, FunctionalLitAgent)
        assert isinstance(agent, LitAgent)


_WITHOUT_RESOURCES = (lambda task: None, lambda task, rollout: None, lambda *task: None)


@pytest.mark.parametrize("decorate", [rollout, llm_rollout, prompt_rollout])
@pytest.mark.parametrize("concurrent", [True, False])
def test_agents_declare_that_they_are_concurrent(decorate: Any, concurrent: bool) -> None:
    @decorate(concurrent=concurrent, reward_range=(0, 10))
    def agent(task: Any, llm: LLM, prompt_template: PromptTemplate) -> None: ...

    assert (agent.concurrent, agent.reward_range) == (concurrent, (0, 10))


def test_object_declares_that_it_is_concurrent() -> None:
    class Player:
        concurrent = True

        async def __call__(self, task: Any, llm: LLM) -> None: ...

    assert llm_rollout(Player()).concurrent


@pytest.mark.parametrize("decorate", [rollout, llm_rollout, prompt_rollout])
@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        *_WITHOUT_RESOURCES,
        lambda llm, task: None,
        lambda prompt_template, task: None,
        lambda task, resources: None,
        lambda task, *, model: None,
    ],
)
def test_wrong_signatures(decorate: Any, function: Any) -> None:
    if decorate is rollout and function in _WITHOUT_RESOURCES:
        function = lambda task, model: None  # noqa: E731
    with pytest.raises(AgentSignatureError) as caught:
        decorate(function)
    assert "<lambda>(" in str(caught.value)
    assert "(task, llm) or (task, prompt_template)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, NotImplementedError)
    assert isinstance(caught.value, AglError)


def test_the_specific_decorators_ask_for_their_own() -> None:
    with pytest.raises(ValueError, match="has no llm"):
        llm_rollout(lambda task, prompt_template: None)
    with pytest.raises(ValueError, match="has no prompt_template"):
        prompt_rollout(lambda task, llm: None)
    with pytest.raises(ValueError, match="needs 'temperature', which is not injected"):
        llm_rollout(lambda task, llm, temperature: None)
    with pytest.raises(TypeError, match="made of a function, not of 3"):
        rollout(3)  # pyright: ignore[reportArgumentType]


def test_a_wrong_signature_is_named() -> None:
    def solve(question: str, llm: LLM) -> float:
        return 0.0

    with pytest.raises(AgentSignatureError, match=r"solve\(question: .*does not take the task"):
        rollout(solve)


def test_defaults_and_variadics_are_left_alone() -> None:
    @llm_rollout
    def agent(task: str, llm: LLM, top: int = 3, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return (task, llm.model, top, args, kwargs)

    assert agent.rollout("t", {"m": LLM_A}, _attempted()) == ("t", "a", 3, (), {})


def test_a_parameter_with_a_default_is_left_out_where_there_is_no_resource() -> None:
    @rollout
    def agent(
        task: str, llm: LLM | None = None, prompt_template: PromptTemplate = PROMPT
    ) -> tuple[Any, ...]:
        return (task, llm, prompt_template.template)

    assert agent.rollout("t", {}, _attempted()) == ("t", None, PROMPT.template)
    other = PromptTemplate(template="other", engine="f-string")
    resources: NamedResources = {"p": other, "m": LLM_A}
    assert agent.rollout("t", resources, _attempted()) == ("t", LLM_A, "other")


# -- injection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("decorate", [rollout, llm_rollout, prompt_rollout, prompt_rollout()])
def test_arguments_are_injected_by_name_with_every_decorator(decorate: Any) -> None:
    seen: dict[str, Any] = {}

    @decorate
    def agent(task: str, prompt_template: PromptTemplate, rollout: Rollout, *, llm: LLM) -> float:
        seen.update(task=task, prompt=prompt_template, rollout=rollout, llm=llm)
        return 0.5

    attempted = _attempted()
    resources: NamedResources = {"p": PROMPT, "m": LLM_A}
    assert agent.rollout("t", resources, attempted) == 0.5
    assert seen == {"task": "t", "prompt": PROMPT, "rollout": attempted, "llm": LLM_A}
    assert agent.training_rollout("t", resources, attempted) == 0.5
    assert agent.validation_rollout("t", resources, attempted) == 0.5


def test_first_of_a_kind_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    resources: NamedResources = {"p": PROMPT, "one": LLM_B, "two": PROXY}
    with caplog.at_level(logging.WARNING):
        assert module_agent.rollout("x", resources, _attempted()) == "b:xx"
        assert module_agent.rollout("x", resources, _attempted()) == "b:xx"
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "module_agent: several resources are of type LLM ('one', 'two'); it gets the first, 'one'"
    ]


def test_a_missing_resource_is_named() -> None:
    with pytest.raises(ValueError, match=r"module_agent asks for .* type LLM.*'p'"):
        module_agent.rollout("x", {"p": PROMPT}, _attempted())
    with pytest.raises(ValueError, match=r"\(none\)"):
        module_agent.rollout("x", {}, _attempted())


def test_a_proxy_is_stripped_for_the_attempt() -> None:
    @rollout
    def agent(task: str, llm: LLM) -> LLM:  # pyright: ignore[reportReturnType]
        return llm

    given = agent.rollout("t", {"m": PROXY}, _attempted())
    assert type(given) is LLM
    assert given.endpoint == "http://proxy/rollout/ro-1/attempt/at-1/v1"
    assert (given.model, given.api_key) == ("p", "k")
    plain = Rollout(rollout_id="ro-1", input={}, start_time=1.0)
    with pytest.raises(ValueError, match="AttemptedRollout"):
        agent.rollout("t", {"m": PROXY}, plain)
    assert agent.rollout("t", {"m": LLM_A}, plain) is LLM_A

    @llm_rollout(strip_proxy=False)
    def raw(task: str, llm: LLM) -> LLM:
        return llm

    assert raw.rollout("t", {"m": PROXY}, plain) is PROXY


# -- sync and async ------------------------------------------------------------------------------


async def test_async_functions() -> None:
    @rollout
    async def agent(task: int, llm: LLM) -> float:
        return task + 0.5

    assert agent.is_async()
    assert not module_agent.is_async()
    assert await agent.rollout_async(1, {"m": LLM_A}, _attempted()) == 1.5
    assert await agent.training_rollout_async(2, {"m": LLM_A}, _attempted()) == 2.5
    assert await agent.validation_rollout_async(3, {"m": LLM_A}, _attempted()) == 3.5
    assert await agent(4, LLM_A) == 4.5
    with pytest.raises(RuntimeError, match="agent is async; call rollout_async"):
        agent.rollout(1, {"m": LLM_A}, _attempted())
    with pytest.raises(RuntimeError, match="module_agent is not async; call rollout"):
        await module_agent.rollout_async("t", {"m": LLM_A}, _attempted())


async def test_an_object_with_an_async_call() -> None:
    class Solver:
        async def __call__(self, task: int, llm: LLM) -> float:
            return 2.0 * task

    agent = rollout(Solver())
    assert agent.is_async()
    assert await agent.rollout_async(4, {"m": LLM_A}, _attempted()) == 8.0


# -- preserved attributes of the function --------------------------------------------------------


def test_name_doc_signature_and_call() -> None:
    assert module_agent.__name__ == "module_agent"  # pyright: ignore[reportAttributeAccessIssue]
    assert module_agent.__doc__ == "Repeat the task."
    assert list(inspect.signature(module_agent).parameters) == ["task", "llm", "times"]
    assert module_agent("ab", LLM_A, times=3) == "a:ababab"
    assert repr(module_agent) == "<agent module_agent>"


def test_a_module_level_agent_pickles_by_reference() -> None:
    # In importlib mode, pytest's test modules are not in sys.modules under an importable name.
    sys.modules.setdefault(__name__, sys.modules[module_agent.__module__])
    assert pickle.loads(pickle.dumps(module_agent)) is module_agent
    assert cloudpickle.loads(cloudpickle.dumps(module_agent)) is module_agent


def test_a_local_agent_is_pickled_by_value() -> None:
    factor = 3

    @rollout
    def agent(task: str, llm: LLM) -> str:  # pyright: ignore[reportReturnType]
        return task * factor

    agent.set_runner(object())  # pyright: ignore[reportArgumentType]
    copy = cloudpickle.loads(cloudpickle.dumps(agent))
    assert copy.rollout("x", {"m": LLM_A}, _attempted()) == "xxx"
    assert copy("y", None) == "yyy"
    with pytest.raises(ValueError, match="has no runner"):
        copy.get_runner()


def test_an_agent_of_main_is_unpickled_in_a_process_without_it(tmp_path: Any) -> None:
    """As with a spawned runner: its ``__main__`` does not have the function."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, cloudpickle
            from agl_core.agent import LitAgent, rollout

            SUFFIX = "!"

            @rollout
            def agent(task, llm):
                return task + SUFFIX

            class Agent(LitAgent):
                def rollout(self, task, resources, rollout):
                    return agent(task, None) + "?"

            sys.stdout.buffer.write(cloudpickle.dumps((agent, Agent())))
            """
        )
    )
    made = subprocess.run([sys.executable, str(script)], capture_output=True, check=True)
    function, method = pickle.loads(made.stdout)
    assert function.rollout("a", {"m": LLM_A}, _attempted()) == "a!"
    assert method.rollout("a", {}, _attempted()) == "a!?"
