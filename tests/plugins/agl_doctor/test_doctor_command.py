"""Tests of ``agl doctor``: the environment, the plugins, a store by URL and by path."""

from __future__ import annotations

import asyncio
import json

import pytest

from agl_cli_kit import main
from agl_core.doctor import _versions as versions_
from agl_core.errors import MissingDependencyError, StoreUnavailableError
from agl_core.plugins import get_registry
from agl_doctor import check_environment, check_plugins, environment, run_store_checks
from agl_doctor.examine import examine
from agl_store_http import LightningStoreServer
from agl_store_memory import InMemoryLightningStore

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
        versions = {"pydantic": "2.0", "click": None}
        monkeypatch.setattr(
            environment,
            "installed_version",
            lambda name: versions[name] if name in versions else real(name),
        )
        unmet = by_check(check_environment(), "requirement")
        found = {finding.ids[1]: finding for finding in unmet}
        assert set(found) == {"pydantic", "click"}
        assert found["pydantic"].severity == "error"
        assert found["pydantic"].what.endswith("and 2.0 is installed")
        assert found["click"].what.endswith("and it is not installed")
        assert found["click"].todo.startswith("pip install 'click>=")

    def test_an_unmet_requirement_of_a_listed_package(self, agl_registry, monkeypatch):
        agl_registry.records = []
        agl_registry.add("catalogue.agl", "agl_catalogue.hooks")
        monkeypatch.setattr(environment, "requires", lambda _: ("agl-runner>=0.1", "agl-core<0"))
        monkeypatch.setattr(
            environment, "installed_version", lambda name: "0.1" if name == "agl-core" else None
        )
        unmet = by_check(check_environment(), "requirement")
        assert {finding.ids[1]: finding.todo for finding in unmet} == {
            "agl-runner": "install agl-runner from its source",
            "agl-core": "upgrade agl-core from its source",
        }

    def test_a_bad_combination(self, monkeypatch):
        versions = {"protobuf": "4.25", "opentelemetry-proto": "1.30"}
        monkeypatch.setattr(versions_, "installed_version", versions.get)
        monkeypatch.setattr(environment, "_unmet_requirements", lambda: ())
        (finding,) = by_check(check_environment(), "versions")
        assert finding.what.startswith("protobuf 4.25 with opentelemetry-proto 1.30: ")
        assert finding.todo == "pip install --upgrade protobuf"

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

    @pytest.mark.parametrize(
        ("variables", "severity"),
        [
            ({}, None),
            ({"http_proxy": "http://proxy:1"}, "info"),
            ({"HTTPS_PROXY": "http://proxy:1", "no_proxy": "b, 127.0.0.1"}, "ok"),
        ],
        ids=["none", "without NO_PROXY", "with NO_PROXY"],
    )
    def test_an_http_proxy(self, monkeypatch, variables, severity):
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.lower(), raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        found = by_check(check_environment(), "http proxy")
        assert [finding.severity for finding in found] == ([severity] if severity else [])
        if severity == "info":
            assert found[0].what.startswith("HTTP_PROXY is set")
            assert found[0].todo == "export NO_PROXY=127.0.0.1,localhost,::1"

    def test_a_missing_dashboard(self, agl_registry):
        (finding,) = by_check(check_environment(), "dashboard")
        assert (finding.severity, finding.ids) == ("info", ("app.dashboard",))
        assert finding.todo
        agl_registry.add("app.dashboard", "agl_dashboard.hooks", dist="agl-dashboard")
        assert by_check(check_environment(), "dashboard") == []

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


STORE_CHECKS = """
from agl_core.doctor import Finding
from agl_core.errors import StoreUnavailableError
from agl_core.plugins import CheckSpec, hookimpl

@hookimpl
def agl_check():
    names = ("counts", "fails", "lost")
    return [CheckSpec(name=n, check=f"{__name__}:{n}", reads_store=True) for n in names]

async def counts(store, *, silent_seconds, max_traces):
    found = len(await store.query_rollouts())
    return [Finding("ok", "counts", f"{found} rollouts, {silent_seconds:g} s, {max_traces}")]

async def fails(store, **options):
    raise ValueError("broken on purpose")

async def lost(store, **options):
    raise StoreUnavailableError("the server is gone")
"""


class TestStoreChecks:
    @pytest.fixture
    def add(self, agl_registry, tmp_path, monkeypatch):
        (tmp_path / "store_checks.py").write_text(STORE_CHECKS)
        monkeypatch.syspath_prepend(str(tmp_path))
        agl_registry.records = []
        return lambda name: agl_registry.add(f"check.{name}", "store_checks", dist="agl-acme")

    @pytest.fixture
    async def store(self):
        store = InMemoryLightningStore()
        await store.enqueue_rollout("x")
        return store

    async def test_each_reads_the_store_with_the_options(self, add, store):
        add("counts")
        (finding,) = await run_store_checks(store, silent_seconds=5.0, max_traces=7)
        assert finding.what == "1 rollouts, 5 s, 7"

    async def test_one_that_fails_does_not_stop_the_others(self, add, store):
        add("fails")
        add("counts")
        options = {"silent_seconds": 5.0, "max_traces": 7}
        failed, counts = await run_store_checks(store, **options)
        assert counts.check == "counts"
        assert failed.severity == "error"
        assert "check.fails of agl-acme" in failed.what
        assert failed.what.endswith("ValueError: broken on purpose")

    async def test_a_lost_store_is_not_the_fault_of_a_check(self, add, store):
        add("lost")
        with pytest.raises(StoreUnavailableError, match="the server is gone"):
            await run_store_checks(store)

    async def test_none_is_installed(self, agl_registry, store):
        agl_registry.records = []
        agl_registry.add("catalogue.agl", "agl_catalogue.hooks")
        with pytest.raises(
            MissingDependencyError, match="installed: install agl-trace from its source"
        ):
            await run_store_checks(store)


class TestCommand:
    def run(self, capsys, *arguments: str):
        code = main(["doctor", "--no-plugin-check", "--json", *arguments])
        return code, json.loads(capsys.readouterr().out or "[]")

    def test_a_sound_environment_exits_with_0(self, capsys):
        code, findings = self.run(capsys)
        assert code == 0
        assert {"python", "gpu"} <= {finding["check"] for finding in findings}

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
        assert f"there is no store {path}" in capsys.readouterr().err
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


class TestPluginsCommand:
    def test_it_says_that_it_loads_plugins(self, capsys):
        assert main(["plugins", "doctor", "--kind", "run"]) == 0
        said = capsys.readouterr()
        assert said.err == "loading 1 plugin, each in a process of its own\n"
        assert "run.stored" in said.out

    def test_results_are_told_as_they_come_and_returned_in_order(self):
        ours = ("agl-tracer-dummy", "agl-tracer-otel")
        records = [one for one in get_registry().of_kind("tracer") if one.dist in ours]
        assert len(records) == 2
        told: list[str] = []
        found = examine(records, build=False, tell=lambda one: told.append(one.key))
        assert [one.key for one in found] == [one.key for one in records]
        assert sorted(told) == sorted(one.key for one in records)
