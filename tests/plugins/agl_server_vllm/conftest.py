from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_server_vllm import VLLMServer
from agl_tiny_model import VLLM_CPU_ARGS, VLLM_CPU_ENV, make_tiny_model

sys.path.insert(0, str(Path(__file__).parent))

from vllm_parts.models import write_model
from vllm_parts.transformers_process import Transformers

from tests.processes import is_running


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """Interpreter that has a real vLLM."""
    python = os.environ.get("AGL_TEST_VLLM_PYTHON", "")
    if not Path(python).is_file():
        pytest.fail(
            f"AGL_TEST_VLLM_PYTHON is {python!r} and no Python that has vLLM; "
            "run `python3 dev.py heavy agl_server_vllm`"
        )
    return python


@pytest.fixture(scope="session")
def transformers(
    vllm_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Transformers]:
    with Transformers(vllm_python, tmp_path_factory.mktemp("hf") / "log") as process:
        yield process


@pytest.fixture(scope="session")
def tiny(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, with two adapters beside it: ``adapter-1`` and ``adapter-2``."""
    folder = tmp_path_factory.mktemp("tiny")
    adapters = [folder / "adapter-1", folder / "adapter-2"]
    return make_tiny_model(folder / "tiny", python=vllm_python, adapters=adapters)


@pytest.fixture(scope="session")
def other(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same shape with other weights."""
    folder = tmp_path_factory.mktemp("other") / "other"
    return make_tiny_model(folder, python=vllm_python, seed=5, taught=False)


@pytest.fixture(scope="session")
def wide(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another shape, with an adapter beside it: ``adapter``."""
    folder = tmp_path_factory.mktemp("wide")
    return make_tiny_model(
        folder / "wide",
        python=vllm_python,
        taught=False,
        hidden_size=128,
        adapters=[folder / "adapter"],
    )


@pytest.fixture(scope="session")
def started(vllm_python: str, tiny: Path) -> Iterator[VLLMServer]:
    server = VLLMServer(
        tiny,
        model="policy",
        python=vllm_python,
        args=VLLM_CPU_ARGS,
        env=VLLM_CPU_ENV,
        update_timeout=60,
    )
    yield server
    asyncio.run(server.stop())


@pytest.fixture(scope="module")
def policy(started: VLLMServer, tiny: Path) -> VLLMServer:
    """A real vLLM for whole models, shared by all modules; tests restore its first weights."""
    if not started.is_running():
        asyncio.run(started.start())
    elif started.model_version != "0":
        asyncio.run(started.update_weights(tiny, version="0"))
    return started


FAKE = Path(__file__).parent / "vllm_parts" / "fake"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "models" / "first", 1.0)


@pytest.fixture
def fake_env(tmp_path: Path) -> dict[str, str]:
    """Environment in which this interpreter has a stand-in for vLLM."""
    pids = tmp_path / "pids"
    pids.mkdir()
    path = os.pathsep.join([str(FAKE), *filter(None, [os.environ.get("PYTHONPATH")])])
    once = str(tmp_path / "once")
    names = {"FAKE_VLLM_PIDS": str(pids), "FAKE_VLLM_ONCE": once, "TMPDIR": str(tmp_path)}
    return {"PYTHONPATH": path, **names}


@pytest.fixture
async def make_server(
    model: Path, fake_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., VLLMServer]]:
    """Make a server that runs the stand-in: ``make_server("fault fault", **options)``."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: list[VLLMServer] = []

    def make(faults: str = "", **options: Any) -> VLLMServer:
        env = {**fake_env, "FAKE_VLLM": faults, **options.pop("env", {})}
        options = {"model": "policy", "start_timeout": 30, "stop_timeout": 5, **options}
        server = VLLMServer(options.pop("path", model), env=env, **options)
        made.append(server)
        return server

    yield make
    for server in made:
        await server.stop()


@pytest.fixture
def alive(tmp_path: Path) -> Callable[[], list[int]]:
    """Return a function that lists the live processes of the stand-in."""

    def find() -> list[int]:
        pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
        return [pid for pid in pids if is_running(pid)]

    return find
