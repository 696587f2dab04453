"""Endpoints that reply with errors, nonsense or nothing: reasons in the history, no crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agl_core.agent import rollout
from agl_core.errors import ConfigError, RunFailedError
from agl_core.types import FINISHED_STATUSES, PromptTemplate
from agl_scripted import Reply, ScriptedModels, SeenRequest
from agl_testing.ports import held_port


def is_edit(request: SeenRequest) -> bool:
    return "<critique>" in request.body["messages"][-1]["content"]


def answer(critique: Reply, edit: Reply) -> Any:
    return lambda request: edit if is_edit(request) else critique


GOOD = Reply("- It needs more pluses.")


class RefusedList:
    """The list of models of an endpoint that refuses the key."""

    async def list(self) -> None:
        error = RuntimeError("refused")
        error.status_code = 401  # pyright: ignore[reportAttributeAccessIssue]
        raise error


def check(apo: Any, store: Any) -> set[str]:
    """Check that the run ended normally with the seed as best prompt; return the rejections."""
    assert apo.state.best == "v0"
    latest = asyncio.run(store.get_latest_resources())
    assert latest.resources["prompt"].template == apo.history[0].prompt
    statuses = {one.status for one in asyncio.run(store.query_rollouts())}
    assert statuses <= FINISHED_STATUSES
    return {one.rejected for one in apo.history[1:]}


class TestEdits:
    @pytest.mark.parametrize(
        ("edit", "reason"),
        [
            ("", "no edit: the answer is empty"),
            ("   \n", "no edit: the answer is empty"),
            ("```\n\n```", "no edit: the answer is empty"),
            ("No question + asked", "the edit lost the placeholders question"),
            ("{question} {mood} +", "the edit has placeholders without values: mood"),
            ("<think>Let me see. {question}", "no edit: the answer is empty"),
        ],
    )
    def test_a_useless_edit_is_rejected_with_the_reason(
        self, make_apo, fit, models: ScriptedModels, store, edit, reason
    ):
        models.script = answer(GOOD, Reply(edit))
        apo = make_apo()
        with pytest.raises(
            RunFailedError, match="APO got no usable prompt in 8 proposals; 8 times"
        ):
            fit(apo)
        reasons = check(apo, store)
        assert all(one.startswith(reason) for one in reasons), reasons
        assert apo.state.rounds == 2
        assert not apo.state.stopped

    def test_an_edit_that_changes_nothing_is_rejected(self, make_apo, fit, models, store):
        models.script = answer(GOOD, Reply("Answer {question} well"))
        apo = make_apo()
        fit(apo)
        assert check(apo, store) == {"the edit is the same as v0"}

    def test_an_edit_that_is_cut_off_is_rejected(self, make_apo, fit, models, store):
        models.script = answer(GOOD, Reply("Answer {question} +", finish_reason="length"))
        apo = make_apo()
        with pytest.raises(RunFailedError, match="the answer is cut off at its limit of tokens"):
            fit(apo)
        assert check(apo, store) == {"no edit: the answer is cut off at its limit of tokens"}

    def test_braces_that_hold_no_placeholder_are_escaped(self, make_apo, fit, models, store):
        edit = 'Answer {question} + as {"answer": {"value": 1}}, not as {} or {'
        models.script = answer(GOOD, Reply(edit))
        apo = make_apo(beam_rounds=1)
        fit(apo)
        template = PromptTemplate(template=apo.history[1].prompt, engine="f-string")
        assert template.format(question="7") == edit.replace("{question}", "7")

    def test_equal_edits_are_measured_once(self, make_apo, fit, models: ScriptedModels):
        models.script = answer(GOOD, Reply("{question} +"))
        apo = make_apo(beam_rounds=1)
        fit(apo)
        assert [one.rejected for one in apo.history] == [
            "",
            "",
            *["the edit is the same as v1"] * 3,
        ]

    @pytest.mark.parametrize(
        "text",
        ["```\n{question} +\n```", "<prompt_template>\n{question} +\n</prompt_template>"],
    )
    def test_wrapping_is_taken_off(self, make_apo, fit, models: ScriptedModels, text):
        models.script = answer(GOOD, Reply(text))
        apo = make_apo(beam_rounds=1)
        fit(apo)
        assert apo.history[1].prompt == "{question} +"


class TestEndpoints:
    @pytest.mark.parametrize(
        ("reply", "reason"),
        [
            (Reply(error_status=500), "no critique: InternalServerError: "),
            (Reply(error_status=429), "no critique: RateLimitError: "),
            (Reply(drop_after=0), "no critique: APIConnectionError: "),
            (Reply(delay=30), "no critique: no answer within 0.3 s"),
            (Reply(garbage=b"<html>no</html>"), "no critique: "),
            (Reply(garbage=b"[]"), "no critique: "),
            (Reply(garbage=b'{"choices": []}'), "no critique: the answer is not a chat completion"),
            (Reply(garbage=b'{"choices": [{"message": {"content": 7}}]}'), "no critique: "),
            (Reply(text=""), "no critique: the answer is empty"),
        ],
    )
    def test_an_endpoint_that_never_answers_ends_the_search_early(
        self, make_apo, fit, models: ScriptedModels, store, reply, reason
    ):
        models.script = [reply]
        apo = make_apo(call_timeout=0.3 if reply.delay else 60.0)
        with pytest.raises(RunFailedError, match="APO got no usable prompt in 4 proposals"):
            fit(apo)
        reasons = check(apo, store)
        assert all(one.startswith(reason) for one in reasons), reasons
        assert apo.state.stopped.startswith("the models gave no answer in round 1: " + reason)
        assert len(models.requests) == 4, "one round is enough to see it"

    @pytest.mark.parametrize("status", [400, 401, 403, 404])
    def test_an_endpoint_that_refuses_calls_ends_the_search_at_the_first_call(
        self, make_apo, fit, models: ScriptedModels, store, status
    ):
        models.script = [Reply(error_status=status)]
        apo = make_apo()
        with pytest.raises(RunFailedError, match="APO got no usable prompt in 1 proposals"):
            fit(apo)
        assert apo.state.stopped.startswith("the models gave no answer in round 1: no critique: ")
        assert len(asyncio.run(store.query_rollouts())) == 2  # for the first critique
        assert len(models.requests) == 1

    def test_a_wrong_key_ends_the_search_before_the_first_rollout(
        self, make_apo, fit, models: ScriptedModels, store
    ):
        models.script = [Reply(error_status=401)]
        apo = make_apo()
        apo.async_openai_client.models = RefusedList()
        with pytest.raises(ConfigError, match="the model 'gpt-5-mini' cannot be called: Auth"):
            fit(apo)
        assert not asyncio.run(store.query_rollouts())

    def test_an_endpoint_that_refuses_its_list_of_models_only_is_used(
        self, make_apo, fit, models: ScriptedModels
    ):
        apo = make_apo(beam_rounds=1)
        apo.async_openai_client.models = RefusedList()
        fit(apo)
        assert apo.state.best != "v0"

    def test_an_endpoint_that_is_not_there_ends_it_too(self, make_apo, fit, store):
        apo = make_apo()
        refused = pytest.raises(RunFailedError, match="Connection error")
        with held_port() as port, refused:
            apo.async_openai_client.base_url = f"http://127.0.0.1:{port}/v1"
            fit(apo)
        assert check(apo, store) == {"no critique: APIConnectionError: Connection error."}

    def test_an_endpoint_that_answers_now_and_then_is_made_use_of(
        self, make_apo, fit, models: ScriptedModels
    ):
        def every_other(request: SeenRequest) -> Reply:
            if not is_edit(request):
                return Reply(error_status=500) if request.number % 2 else GOOD
            return Reply(f"{{question}} + {request.number}")

        models.script = every_other
        apo = make_apo(val_batch_size=8)
        fit(apo)
        assert not apo.state.stopped
        assert apo.state.rounds == 2
        assert apo.state.best != "v0"
        assert any(one.rejected.startswith("no critique") for one in apo.history)


class TestAgents:
    def test_an_agent_that_always_fails_scores_nothing(self, make_apo, fit, store):
        @rollout
        def broken(task: int, prompt_template: PromptTemplate) -> float:
            raise RuntimeError("always")

        apo = make_apo(beam_rounds=1)
        with pytest.raises(RunFailedError, match="RuntimeError always"):
            fit(apo, broken)
        check(apo, store)
        assert apo.history[0].score() is None
        assert apo.history[0].failed == list(range(8))

    def test_an_agent_that_hangs_ends_with_the_batch(self, make_apo, fit, store):
        @rollout
        async def hanging(task: int, prompt_template: PromptTemplate) -> float:
            await asyncio.Event().wait()
            return 1.0

        apo = make_apo(beam_rounds=1, beam_width=1, branch_factor=1, rollout_batch_timeout=0.3)
        with pytest.raises(RunFailedError, match="APO: no rollout of the agent ended in time"):
            fit(apo, hanging)
        assert check(apo, store) == {"none of its rollouts succeeded"}
        assert apo.history[0].score() is None

    def test_an_agent_without_rewards_is_told_so(self, make_apo, fit):
        @rollout
        def unrated(task: int, prompt_template: PromptTemplate) -> None:
            return None

        with pytest.raises(RunFailedError, match="the agent gave no reward in any rollout"):
            fit(make_apo(beam_rounds=1), unrated)

    def test_rewards_that_some_paths_forget_are_counted(self, make_apo, fit, caplog):
        @rollout
        def forgetful(task: int, prompt_template: PromptTemplate) -> float | None:
            return None if task % 4 == 0 else 0.5

        fit(make_apo(beam_rounds=1), forgetful)
        (said,) = [text for text in caplog.messages if "without a reward" in text]
        assert int(said.split()[1]) >= 2


def test_a_search_without_conversations_says_so_once(make_apo, fit, caplog):
    fit(make_apo(beam_rounds=1))
    said = [one.message for one in caplog.records if "reads conversations" in one.message]
    assert len(said) == 1
    assert said[0].startswith("APO reads conversations, but the 2 rollouts that succeeded")
    assert "the tracer 'otel' records calls of the SDKs" in said[0]
