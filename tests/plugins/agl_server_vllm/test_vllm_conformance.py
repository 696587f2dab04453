"""vLLM under the conformance suite of its kind; the stand-in for quick, the real one on demand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm_parts.models import write_adapter, write_model

from agl_core.errors import ConfigError
from agl_core.plugins import build_component
from agl_server_vllm import VLLMServer
from agl_testing import LLMServerSuite
from agl_tiny_model import VLLM_CPU_ARGS, VLLM_CPU_ENV

REAL = "AGL_TEST_VLLM_SUITE"


class TestWholeModels(LLMServerSuite):
    flags = frozenset({"weights", "token_ids"})

    @pytest.fixture
    def server(self, make_server: Callable[..., VLLMServer]) -> VLLMServer:
        return make_server()

    @pytest.fixture
    def new_weights(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "models" / "second", 2.0)


class TestAdapters(LLMServerSuite):
    flags = frozenset({"weights", "token_ids"})

    @pytest.fixture
    def server(self, make_server: Callable[..., VLLMServer]) -> VLLMServer:
        return make_server(lora=True)

    @pytest.fixture
    def new_weights(self, tmp_path: Path) -> Path:
        return write_adapter(tmp_path / "adapters" / "second", 2.0)


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.skipif(REAL not in os.environ, reason=f"a dozen starts, minutes: set {REAL}=1")
class TestRealWholeModels(LLMServerSuite):
    flags = frozenset({"weights", "token_ids"})

    @pytest.fixture
    def server(self, vllm_python: str, tiny: Path) -> VLLMServer:
        return VLLMServer(tiny, python=vllm_python, args=VLLM_CPU_ARGS, env=VLLM_CPU_ENV)

    @pytest.fixture
    def new_weights(self, other: Path) -> Path:
        return other


def test_it_is_built_by_name(agl_registry, model: Path):
    agl_registry.add("llm_server.vllm", "agl_server_vllm.hooks")
    spec = {
        "type": "vllm",
        "path": str(model),
        "model": "m",
        "lora": True,
        "args": {"max-model-len": 128},
    }
    server = build_component("llm_server", spec)
    assert isinstance(server, VLLMServer)
    assert (server.model, server.base_model, server.model_version) == ("m", "m-base", "0")
    assert not server.is_running()
    with pytest.raises(ConfigError, match=r"llm_server\.prot: "):
        build_component("llm_server", {**spec, "prot": 3})
