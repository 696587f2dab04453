"""``agl vllm``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from agl_cli_kit import main
from agl_core.errors import ConfigError, LLMServerError
from agl_server_vllm.command import read_words


@pytest.mark.parametrize(
    ("words", "options", "args"),
    [
        (["m"], {"path": "m", "port": 8000, "lora": False}, []),
        (["serve", "m", "--port", "0", "--seed", "3"], {"path": "m", "port": 0}, ["--seed", "3"]),
        (["--model", "m", "--served-model-name", "n"], {"path": "m", "model": "n"}, []),
        (
            ["m", "--max-model-len=9", "--enable-lora", "--max-lora-rank", "32", "--enforce-eager"],
            {"lora": True, "max_lora_rank": 32},
            ["--max-model-len=9", "--enforce-eager"],
        ),
    ],
)
def test_words_of_vllm(words, options, args):
    read = read_words(words)
    assert read["args"] == args
    assert {key: read[key] for key in options} == options


def test_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    """As with vLLM's own command."""
    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    assert read_words(["m"])["api_key"] == "s3cret"
    assert read_words(["m", "--api-key", "k"])["api_key"] == "k"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name one model after --.*: found none"),
        (["serve", "--port", "3"], "found none"),
        (["m", "--model", "n"], "found m and n"),
        (["m", "--port", "x"], "invalid int value"),
    ],
)
def test_invalid_words(words, message):
    with pytest.raises(ConfigError, match=message):
        read_words(words)


def test_a_missing_vllm_names_the_pip_command(model: Path, capsys):
    assert main(["vllm", "--", "serve", str(model)]) == 2
    assert capsys.readouterr().err == (
        "agl: error: the vLLM server needs a package that is not installed: pip install 'vllm'\n"
    )


@pytest.fixture
def command(model: Path, fake_env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    words = ["-m", "agl_cli_kit", "vllm", "--", "serve", str(model)]
    words += ["--port", "0", "--served-model-name", "policy"]
    running = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, **fake_env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield running
    running.kill()
    running.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_a_signal(command: subprocess.Popen[str], alive, number: int):
    assert command.stdout is not None
    said = command.stdout.readline().split()
    assert said[:3] == ["Serving", "policy", "at"]
    with urllib.request.urlopen(f"{said[3]}/models") as reply:
        assert reply.status == 200
    command.send_signal(number)
    out, err = command.communicate(timeout=30)
    assert (command.returncode, out) == (0, "Stopped\n"), err
    assert alive() == []


def test_the_command_ends_when_vllm_dies(command: subprocess.Popen[str], alive):
    assert command.stdout is not None
    command.stdout.readline()
    os.kill(min(alive()), signal.SIGKILL)
    _, err = command.communicate(timeout=30)
    assert command.returncode == 1
    assert "agl: error: vLLM has died (killed by signal 9)" in err
    assert alive() == []


async def test_a_check_refuses_files_and_installations_before_it_reads_options(
    make_server, tmp_path
):
    with pytest.raises(LLMServerError, match=r"is not a model's folder: it has no config\.json"):
        await make_server(path=tmp_path / "nothing").check()
    with pytest.raises(LLMServerError, match=r"options of vLLM in .* cannot be read: .*is in none"):
        await make_server().check()  # the stand-in has no parser
