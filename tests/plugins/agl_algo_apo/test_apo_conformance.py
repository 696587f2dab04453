"""APO under the conformance suite, and as a component built by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import agl_core as agl
from agl_adapters import TraceToMessages
from agl_algo_apo import APO, APOConfig
from agl_core.errors import ConfigError
from agl_core.plugins import build_component
from agl_testing.algorithm import AlgorithmSuite


class Editor:
    """A client that answers without a network."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages: Any, **_: Any) -> Any:
        edit = "<critique>" in messages[-1]["content"]
        text = "Is {number} an even number?" if edit else "- Too short."
        message = SimpleNamespace(content=text)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)], usage=None)


class TestAPO(AlgorithmSuite):
    flags = frozenset({"resources", "resumes", "improves"})

    @pytest.fixture
    def algorithm(self) -> APO[Any]:
        return APO(Editor(), beam_width=2, branch_factor=1, beam_rounds=1, val_batch_size=2)

    @pytest.fixture
    def adapter(self) -> Any:
        return TraceToMessages()


class TestByName:
    def test_it_is_built_by_name(self):
        built: Any = build_component("algorithm", {"type": "apo", "beam_width": 7})
        assert isinstance(built, APO)
        assert built.config.beam_width == 7
        assert built.config.branch_factor == 4

    def test_it_is_exported_by_agl_core(self):
        assert agl.APO is APO  # pyright: ignore[reportAttributeAccessIssue]

    def test_an_unknown_option_is_named(self):
        with pytest.raises(ConfigError, match="beam_with"):
            build_component("algorithm", {"type": "apo", "beam_with": 7})

    def test_defaults_are_those_of_the_reference_implementation(self):
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
        assert APOConfig().model_dump(include=set(reference)) == reference

    async def test_a_missing_client_and_key_is_a_config_error(self, monkeypatch, store):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        apo: APO[int] = APO()
        apo.set_store(store)
        apo.set_adapter(TraceToMessages())
        prompt = agl.PromptTemplate(template="{x}", engine="f-string")
        apo.set_initial_resources({"prompt": prompt})
        with pytest.raises(ConfigError, match="set OPENAI_API_KEY"):
            await apo.run([1], [1])

    def test_a_client_is_made_from_the_environment(self, monkeypatch, models, fit):
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        monkeypatch.setenv("OPENAI_BASE_URL", models.base_url)
        apo: APO[int] = APO(seed=1, beam_width=1, branch_factor=2, beam_rounds=2)
        fit(apo)
        assert apo.get_best_prompt().template.count("+") == 2
        assert {r.headers["authorization"] for r in models.requests} == {"Bearer any"}
