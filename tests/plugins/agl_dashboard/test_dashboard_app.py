"""The app that serves the built page, on a real store server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from agl_core.plugins import AppSpec
from agl_dashboard import DashboardApp, cli
from agl_dashboard.check import check_page
from agl_store_http import LightningStoreServer, StoreAppOptions, installed_apps
from agl_store_memory import InMemoryLightningStore

SECRET = "a secret of more than sixteen characters"
PAGE = "<!doctype html><html><head><title>agl</title></head><body></body></html>"
SCRIPT = "console.log('hello')"


def built(_: object) -> DashboardApp:
    return DashboardApp(BUILT)


def not_built(_: object) -> DashboardApp:
    return DashboardApp(BUILT / "missing")


BUILT = Path()


@pytest_asyncio.fixture
async def page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[aiohttp.ClientSession]:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "assets/main-1a2b.js").write_text(SCRIPT)
    monkeypatch.setattr(sys.modules[__name__], "BUILT", tmp_path)
    apps = (
        AppSpec("dashboard", "/dashboard", f"{__name__}:built", scope="public"),
        AppSpec("empty", "/empty", f"{__name__}:not_built", scope="public"),
    )
    options = StoreAppOptions(mounts=apps)
    server = LightningStoreServer(
        InMemoryLightningStore(),
        port=0,
        launch_mode="asyncio",
        auth_token=SECRET,
        options=options,
    )
    await server.start()
    async with aiohttp.ClientSession(server.endpoint) as session:
        yield session
    await server.stop()


@pytest.mark.parametrize(
    ("path", "base"),
    [
        ("/dashboard/", "./"),
        ("/dashboard/rollouts", "./"),
        ("/dashboard/rollouts/ro-1", "../"),
        ("/dashboard/rollouts/a%2Fb", "../"),
    ],
)
async def test_every_view_is_the_page_with_a_base_that_fits(page, path: str, base: str):
    async with page.get(path) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/html"
        assert answer.headers["cache-control"] == "no-cache"
        assert await answer.text() == PAGE.replace("<head>", f'<head><base href="{base}">')


async def test_the_prefix_without_a_slash_leads_to_the_page(page):
    async with page.get("/dashboard", headers={"Accept": "text/html"}) as answer:
        assert answer.status == 200
        assert answer.url.path == "/dashboard/"


async def test_assets_last_and_unknown_ones_are_not_the_page(page):
    async with page.get("/dashboard/assets/main-1a2b.js") as answer:
        assert answer.content_type == "text/javascript"
        assert "immutable" in answer.headers["cache-control"]
        assert await answer.text() == SCRIPT
    async with page.get("/dashboard/assets/old-9z.js") as answer:
        assert answer.status == 404


@pytest.mark.parametrize("path", ["/dashboard/", "/dashboard/assets/main-1a2b.js", "/empty/"])
async def test_every_reply_lets_only_own_scripts_run(page, path: str):
    async with page.get(path) as answer:
        policy = dict(
            part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_the_page_needs_no_token_and_its_data_does(page):
    async with page.get("/v1/agl/rollouts/counts") as answer:
        assert answer.status == 401


async def test_head_has_no_body_and_post_is_refused(page):
    async with page.head("/dashboard/") as answer:
        assert answer.status == 200
        assert int(answer.headers["content-length"]) > len(PAGE)
    async with page.post("/dashboard/") as answer:
        assert answer.status == 405


async def test_a_page_that_is_not_built_says_how_to_build_it(page):
    async with page.get("/empty/") as answer:
        assert answer.status == 503
        assert "python3 dev.py dashboard" in await answer.text()


def test_the_doctor_says_whether_the_page_is_there(tmp_path: Path):
    (finding,) = check_page()
    assert (finding.severity, finding.check) == ("ok", "dashboard")
    (finding,) = check_page(tmp_path)
    assert finding.severity == "error"
    assert str(tmp_path) in finding.what
    assert "python3 dev.py dashboard" in finding.todo


def test_the_plugin_is_among_the_installed_apps():
    assert "/dashboard" in [app.path for app in installed_apps()]


# -- the commands ----------------------------------------------------------------------------------


def run(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    env = {key: value for key, value in os.environ.items() if key != "AGL_AUTH_TOKEN"}
    return subprocess.Popen(
        [sys.executable, "-m", "agl_cli_kit", *arguments],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_file_that_is_missing_is_named_and_not_made(tmp_path: Path):
    process = run("dashboard", "none.db", "--port", "0", cwd=tmp_path)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "there is no file none.db" in errors
    assert not (tmp_path / "none.db").exists()


async def test_a_store_in_a_read_only_folder_is_shown(tmp_path: Path, monkeypatch, capsys):
    from agl_store_sqlite import SqliteLightningStore

    file = tmp_path / "runs.db"
    store = SqliteLightningStore(str(file))
    rollout = await store.enqueue_rollout({"question": 1})
    await store.close()
    before = sorted(tmp_path.iterdir())
    # The tests may run as root, for whom no mode is read-only.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    shown = cli._open(str(file))
    assert await shown.get_rollout_by_id(rollout.rollout_id) == rollout
    assert "read-only" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
    await shown.close()


async def test_the_command_shows_the_store_in_a_file(tmp_path: Path):
    from agl_store_sqlite import SqliteLightningStore

    store = SqliteLightningStore(str(tmp_path / "runs.db"))
    rollout = await store.enqueue_rollout({"question": 1})
    await store.close()
    process = run("dashboard", "runs.db", "--port", "0", cwd=tmp_path)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"Dashboard of runs\.db at (\S+)/dashboard \(Ctrl\+C stops\)\n", line)
        assert found, line
        async with aiohttp.ClientSession(found[1]) as session:
            async with session.get(f"/v1/agl/rollouts/{rollout.rollout_id}") as answer:
                assert (await answer.json())["input"] == {"question": 1}
            async with session.get("/dashboard/") as answer:
                assert answer.status == 200
                assert '<script type="module"' in await answer.text()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
        assert (rest, process.returncode) == ("Stopped\n", 0), errors
    finally:
        process.kill()
        process.communicate()
