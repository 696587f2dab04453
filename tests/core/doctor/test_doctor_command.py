"""Tests of ``agl doctor``: the environment, the plugins, a store by URL and by path."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from agl_core.cli import main
from agl_core.doctor import _environment as environment
from agl_core.doctor import check_environment, check_plugins
from agl_core.store import InMemoryLightningStore
from agl_store_http import LightningStoreServer

HOOKS = """
from agl_core.plugins import ComponentSpec, hookimpl

@hookimpl
def agl_store():
    raise RuntimeError("broken on purpose")
"""


def by_check(findings, check: str):
    return [finding for finding in findings if finding.check == check]


@pytest.mark.usefixtures("agl_registry")
class TestEnvironment:
    def test_versions_are_reported(self):
        (finding,) = by_check(check_environment(), "python")
        assert finding.severity == "ok"
        assert "agl-core 0." in finding.what

    def test_this_environment_meets_its_requirements(self):
        assert by_check(check_environment(), "requirement") == []

    def test_an_unmet_requirement(self, monkeypatch):
        real = environment.installed_version
        versions = {"pydantic": "2.0", "jinja2": None}
        monkeypatch.setattr(
            environment,
            "installed_version",
            lambda name: versions[name] if name in versions else real(name),
        )
        unmet = by_check(check_environment(), "requirement")
        found = {finding.ids[1]: finding for finding in unmet}
        assert set(found) == {"pydantic", "jinja2"}
        assert found["pydantic"].severity == "error"
        assert found["pydantic"].what.endswith("and 2.0 is installed")
        assert found["jinja2"].what.endswith("and it is not installed")
        assert found["jinja2"].todo.startswith("pip install 'jinja2>=")

    def test_a_bad_combination(self, monkeypatch):
        versions = {"protobuf": "4.25", "opentelemetry-proto": "1.30"}
        monkeypatch.setattr(environment, "installed_version", versions.get)
        monkeypatch.setattr(environment, "_unmet_requirements", lambda: ())
        (finding,) = by_check(check_environment(), "versions")
        assert finding.what.startswith("protobuf 4.25 with opentelemetry-proto 1.30: ")
        assert finding.todo == "pip install --upgrade protobuf"

    def test_the_port(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            (finding,) = by_check(check_environment(port), "port")
            assert finding.severity == "info"
            assert f"port {port} is taken" in finding.what
        (finding,) = by_check(check_environment(port), "port")
        assert finding.severity == "ok"

    @pytest.mark.parametrize(
        ("script", "severity", "words"),
        [
            ("echo 'H200, 143771 MiB, 570.1'", "ok", "H200, 143771 MiB, 570.1"),
            ("echo 'driver mismatch'; exit 9", "warning", "nvidia-smi fails: driver mismatch"),
        ],
    )
    def test_a_gpu(self, tmp_path, monkeypatch, script, severity, words):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
        (finding,) = by_check(check_environment(), "gpu")
        assert (finding.severity, words in finding.what) == (severity, True)

    def test_no_gpu(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        (finding,) = by_check(check_environment(), "gpu")
        assert finding.severity == "info"


def test_a_plugin_that_does_not_load_is_an_error(agl_registry, tmp_path, monkeypatch):
    (tmp_path / "broken_hooks.py").write_text(HOOKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    agl_registry.records = []
    agl_registry.add("store.broken", "broken_hooks", dist="agl-store-broken")
    good, bad = check_plugins()
    assert good.what == "0 plugins load"
    assert bad.severity == "error"
    assert "broken on purpose" in bad.what
    assert bad.ids == ("store.broken",)


class TestCommand:
    def run(self, capsys, *arguments: str):
        code = main(["doctor", "--no-plugin-check", "--json", *arguments])
        return code, json.loads(capsys.readouterr().out or "[]")

    def test_a_sound_environment_exits_with_0(self, capsys):
        code, findings = self.run(capsys)
        assert code == 0
        assert {"python", "gpu", "port"} <= {finding["check"] for finding in findings}

    async def test_a_store_by_url(self, capsys):
        store = InMemoryLightningStore()
        rollout = await store.enqueue_rollout("x")
        server = LightningStoreServer(store, port=0)
        await server.start()
        try:
            code, findings = await asyncio.to_thread(self.run, capsys, "--store", server.endpoint)
        finally:
            await server.stop()
        assert code == 1
        (queue,) = [finding for finding in findings if finding["check"] == "queue"]
        assert queue["ids"] == [rollout.rollout_id]

    def test_a_path_that_is_not_there_makes_no_store(self, capsys, tmp_path):
        path = tmp_path / "runs.db"
        assert main(["doctor", "--store", str(path)]) == 2
        assert "no such file" in capsys.readouterr().err
        assert not path.exists()

    async def test_strict_counts_warnings(self, capsys):
        store = InMemoryLightningStore()
        rollout = await store.start_rollout("x", worker_id="w")
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        server = LightningStoreServer(store, port=0)
        await server.start()
        try:
            codes = [
                (await asyncio.to_thread(self.run, capsys, "--store", server.endpoint, *extra))[0]
                for extra in ([], ["--strict"])
            ]
        finally:
            await server.stop()
        assert codes == [0, 1]

    def test_the_text_output(self, capsys):
        assert main(["doctor", "--no-plugin-check"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("ok      python: Python 3.")
        assert lines[-1] == "0 errors, 0 warnings"
