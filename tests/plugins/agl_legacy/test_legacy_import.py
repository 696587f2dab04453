"""The compatibility import: what `import agentlightning` finds, and where it refuses."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from multiprocessing import spawn
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import agl_core
import agl_core.emitter
import agl_legacy
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer


@pytest.fixture
def served() -> Iterator[None]:
    agl_legacy.install()
    yield
    agl_legacy.uninstall()


def test_without_install_the_package_is_not_found() -> None:
    assert importlib.util.find_spec("agentlightning") is None


@pytest.mark.usefixtures("served")
def test_the_environment_has_no_package_of_that_name() -> None:
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("agentlightning")


@pytest.mark.usefixtures("served")
def test_names_are_found_in_every_form_of_import() -> None:
    scope: dict[str, Any] = {}
    exec(
        "import agentlightning as agl, agentlightning.store.base\n"
        "from agentlightning import LitAgent as A, semconv\n"
        "from agentlightning.types import *\n"
        "from agentlightning.store import memory\n",
        scope,
    )
    assert scope["A"] is agl_core.LitAgent
    assert scope["PromptTemplate"] is agl_core.PromptTemplate
    assert scope["memory"].InMemoryLightningStore is InMemoryLightningStore
    agl = scope["agl"]
    assert agl.store.base.UNSET is import_module("agl_core.store").UNSET
    assert agl.utils.otel.flatten_attributes({"a": {"b": 1}}) == {"a.b": 1}  # never imported above
    assert scope["semconv"].AGL_REWARD == "agentlightning.reward"
    assert {"Trainer", "emit_reward", "APO"} <= set(dir(agl))


@pytest.mark.usefixtures("served")
def test_a_function_is_not_replaced_by_the_module_of_its_name() -> None:
    module = import_module("agentlightning.emitter.reward")
    assert module.find_final_reward is agl_core.find_final_reward
    assert import_module("agentlightning.emitter").reward is agl_core.emitter.reward
    import_module("agentlightning.reward")
    assert import_module("agentlightning").reward is agl_core.emitter.reward


@pytest.mark.usefixtures("served")
def test_what_is_not_there_names_the_page() -> None:
    agl = import_module("agentlightning")
    for statement in (
        "import agentlightning.verl.daemon",
        "from agentlightning.trainer import NoSuchName",
        "from agentlightning import CollectionBasedLightningStore",
    ):
        with pytest.raises(ImportError, match=r"is not part of agl; see docs/migration\.md#\w+"):
            exec(statement)
    with pytest.raises(AttributeError, match=r"agentlightning\.NoSuchName .* docs/migration\.md#"):
        _ = agl.NoSuchName
    assert not hasattr(agl, "NoSuchName")
    assert not hasattr(agl, "__file__")


@pytest.mark.usefixtures("served")
def test_a_fork_server_does_not_import_the_script_before_it_has_the_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = ModuleType("__main__")
    script.__file__ = "/script.py"
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert spawn.get_preparation_data("child")["init_main_from_path"] == "/script.py"
    assert "init_main_from_path" not in spawn.get_preparation_data("ignore")
    agl_legacy.uninstall()
    assert "init_main_from_path" in spawn.get_preparation_data("ignore")


@pytest.mark.usefixtures("served")
def test_a_dotted_path_of_0_3_names_a_component() -> None:
    trainer = agl_core.Trainer(strategy="shm", tracer={"type": "agentlightning.tracer.OtelTracer"})
    assert isinstance(trainer.tracer, OtelTracer)


@pytest.mark.usefixtures("served")
def test_a_name_of_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agl_tracer_weave", None)
    with pytest.raises(ImportError, match=r"is not installed: .*agl.tracer.weave"):
        exec("from agentlightning.tracer.weave import WeaveTracer")
    assert "WeaveTracer" not in import_module("agentlightning.tracer.weave").__all__


def test_an_installed_package_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agentlightning").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    agl_legacy.install()  # a folder without __init__.py is not a package
    agl_legacy.uninstall()
    (tmp_path / "agentlightning/__init__.py").write_text("raise SystemExit('was imported')\n")
    importlib.invalidate_caches()
    with pytest.raises(agl_legacy.AlreadyInstalledError, match="agentlightning is installed") as e:
        agl_legacy.install()
    assert "\n" not in str(e.value)
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n")
    done = subprocess.run(
        [sys.executable, "-m", "agl_legacy", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"agl_legacy: {e.value}\n"
