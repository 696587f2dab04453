from __future__ import annotations

import pytest

from agl_core.env import (
    LightningEnvVar,
    resolve_bool_env_var,
    resolve_int_env_var,
    resolve_str_env_var,
)
from agl_core.errors import InvalidArgumentError

SWITCH = LightningEnvVar.AGL_MANAGED_STORE
PORT = LightningEnvVar.AGL_SERVER_PORT
HOST = LightningEnvVar.AGL_SERVER_HOST


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in LightningEnvVar:
        monkeypatch.delenv(variable.value, raising=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(word, True) for word in ("1", "true", "YES", " on ", "True\n")],
        *[(word, False) for word in ("0", "false", "No", " OFF", "\tfalse")],
    ],
)
def test_bool_words(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv(SWITCH.value, text)
    assert resolve_bool_env_var(SWITCH, fallback=not value) is value


@pytest.mark.parametrize("text", ["", "2", "maybe", "truefalse"])
def test_an_invalid_bool_names_the_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(SWITCH.value, text)
    with pytest.raises(InvalidArgumentError, match=r"AGL_MANAGED_STORE is .*takes one of 1, true"):
        resolve_bool_env_var(SWITCH)


def test_override_beats_variable_beats_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_bool_env_var(SWITCH) is None
    assert resolve_bool_env_var(SWITCH, fallback=True) is True
    assert resolve_int_env_var(PORT) is None
    assert resolve_int_env_var(PORT, fallback=4747) == 4747
    assert resolve_str_env_var(HOST) is None
    assert resolve_str_env_var(HOST, fallback="localhost") == "localhost"

    monkeypatch.setenv(SWITCH.value, "0")
    monkeypatch.setenv(PORT.value, " 81 ")
    monkeypatch.setenv(HOST.value, "a.example")
    assert resolve_bool_env_var(SWITCH, fallback=True) is False
    assert resolve_bool_env_var(SWITCH, True) is True
    assert resolve_int_env_var(PORT, fallback=4747) == 81
    assert resolve_int_env_var(PORT, 0, fallback=4747) == 0
    assert resolve_str_env_var(HOST, fallback="localhost") == "a.example"
    assert resolve_str_env_var(HOST, "", fallback="localhost") == ""


def test_an_override_makes_a_bad_variable_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH.value, "maybe")
    monkeypatch.setenv(PORT.value, "http")
    assert resolve_bool_env_var(SWITCH, False) is False
    assert resolve_int_env_var(PORT, 4747) == 4747


@pytest.mark.parametrize("text", ["", "4747.5", "http"])
def test_an_invalid_int_names_the_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(PORT.value, text)
    with pytest.raises(ValueError, match=r"AGL_SERVER_PORT is .*a whole number"):
        resolve_int_env_var(PORT)


def test_a_variable_of_a_plugin_goes_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_RETRIES", "3")
    assert resolve_int_env_var("ACME_RETRIES", fallback=1) == 3
    assert resolve_bool_env_var("ACME_ABSENT", fallback=False) is False
