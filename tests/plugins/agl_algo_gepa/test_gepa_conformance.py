"""GEPA under the conformance suite, and as a component built by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from agl_adapters import TraceToMessages
from agl_algo_gepa import GEPA
from agl_core.errors import ConfigError
from agl_core.plugins import build_component
from agl_core.types import PromptTemplate
from agl_testing.algorithm import AlgorithmSuite


class TestGEPA(AlgorithmSuite):
    flags = frozenset({"resources", "resumes", "improves"})

    @pytest.fixture
    def algorithm(self, make_client: Any) -> GEPA[Any]:
        client = make_client(lambda _: "Is {number} an even number?")
        return GEPA(client, max_iterations=2, perfect_score=None)

    @pytest.fixture
    def adapter(self) -> Any:
        return TraceToMessages()


class TestByName:
    def test_it_is_built_by_name(self):
        built: Any = build_component("algorithm", {"type": "gepa", "max_iterations": 7})
        assert isinstance(built, GEPA)
        assert built.config.max_iterations == 7
        assert built.config.reflection_minibatch_size == 3

    def test_an_invalid_option_is_named(self):
        with pytest.raises(ConfigError, match="module_selector"):
            build_component("algorithm", {"type": "gepa", "module_selector": "some"})

    def test_listing_plugins_imports_no_library(self):
        code = (
            "import sys\n"
            "from agl_core.plugins import get_registry\n"
            "assert any(one.name == 'gepa' for one in get_registry().usable('algorithm'))\n"
            "print(sorted({'gepa', 'openai', 'agl_algo_gepa.algorithm'} & set(sys.modules)))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_dataset": None}, "GEPA needs tasks in train_dataset"),
        ({"val_dataset": []}, "GEPA needs tasks in val_dataset"),
        ({"resources": {}}, "GEPA needs a PromptTemplate among the initial resources"),
        ({"template": "{x"}, "expected '}'"),
        ({"client": None}, "set OPENAI_API_KEY"),
    ],
)
async def test_missing_requirements_are_reported(store, make_client, monkeypatch, change, message):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    gepa: GEPA[int] = GEPA(change.get("client", make_client(lambda _: "")))
    prompt = PromptTemplate(template=change.get("template", "{x}"), engine="f-string")
    gepa.set_store(store)
    gepa.set_adapter(TraceToMessages())
    gepa.set_initial_resources(change.get("resources", {"prompt": prompt}))
    with pytest.raises(ValueError, match=message):
        await gepa.run(change.get("train_dataset", [1]), change.get("val_dataset", [1]))
