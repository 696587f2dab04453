"""APO under the conformance suite, and as a component that is asked for by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import agl_core as agl
from agl_algo_apo import APO, APOConfig
from agl_core.adapter import TraceToMessages
from agl_core.errors import ConfigError
from agl_core.plugins import build_component
from agl_testing.algorithm import AlgorithmSuite


class Editor:
    """A client that asks for nothing on the network."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages: Any, **_: Any) -> Any:
        edit = "<critique>" in messages[-1]["content"]
        text = "Is {number} an even number?" if edit else "- Too short."
        message = SimpleNamespace(content=text)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)], usage=None)


class TestAPO(AlgorithmSuite):
    flags = frozenset({"resources"})

    @pytest.fixture
    def algorithm(self) -> APO[Any]:
        return APO(Editor(), beam_width=2, branch_factor=1, beam_rounds=1, val_batch_size=2)

    @pytest.fixture
    def adapter(self) -> Any:
        return TraceToMessages()


class TestByName:
    def test_the_name_builds_it(self):
        built: Any = build_component("algorithm", {"type": "apo", "beam_width": 7})
        assert isinstance(built, APO)
        assert built.settings.beam_width == 7
        assert built.settings.branch_factor == 4

    def test_the_public_name_is_it(self):
        assert agl.APO is APO

    def test_a_mistake_is_told_with_its_path(self):
        with pytest.raises(ConfigError, match="beam_with"):
            build_component("algorithm", {"type": "apo", "beam_with": 7})

    def test_defaults_are_the_constructors(self):
        import inspect

        parameters = inspect.signature(APO).parameters
        assert list(parameters) == list(APOConfig.model_fields)
        for name, field in APOConfig.model_fields.items():
            assert parameters[name].default == field.default, name
        reference = {
            "gradient_model": "gpt-5-mini",
            "apply_edit_model": "gpt-4.1-mini",
            "diversity_temperature": 1.0,
            "gradient_batch_size": 4,
            "val_batch_size": 16,
            "beam_width": 4,
            "branch_factor": 4,
            "beam_rounds": 3,
            "rollout_batch_timeout": 3600,
            "run_initial_validation": True,
        }
        assert {name: parameters[name].default for name in reference} == reference

    async def test_without_a_client_or_key_it_says_what_to_set(self, monkeypatch, store):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        apo: APO[int] = APO()
        apo.set_store(store)
        apo.set_adapter(TraceToMessages())
        prompt = agl.PromptTemplate(template="{x}", engine="f-string")
        apo.set_initial_resources({"prompt": prompt})
        with pytest.raises(ConfigError, match="set OPENAI_API_KEY"):
            await apo.run([1], [1])

    def test_without_a_client_it_makes_one(self, monkeypatch, models, fit):
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        monkeypatch.setenv("OPENAI_BASE_URL", models.base_url)
        apo: APO[int] = APO(seed=1, beam_width=1, branch_factor=2, beam_rounds=2)
        fit(apo)
        assert apo.get_best_prompt().template.count("+") == 2
        assert {r.headers["authorization"] for r in models.requests} == {"Bearer any"}
