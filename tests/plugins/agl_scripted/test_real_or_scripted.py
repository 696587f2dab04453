"""The model of an example: real if the environment names one, else scripted."""

from __future__ import annotations

import pytest
from openai import OpenAI

from agl_scripted import Reply, ScriptedModels, real_or_scripted


def test_without_variables_the_script_answers_and_says_so(capsys: pytest.CaptureFixture[str]):
    with real_or_scripted([Reply("Hello.")], "gpt", environ={"ANTHROPIC_API_KEY": "k"}) as model:
        assert model.is_simulated
        assert "No OPENAI_API_KEY or OPENAI_BASE_URL: a SIMULATED" in capsys.readouterr().err
        with OpenAI(base_url=f"{model.base_url}/v1", api_key="none") as client:
            reply = client.chat.completions.create(
                model=model.model, messages=[{"role": "user", "content": "Hi"}]
            )
        assert reply.choices[0].message.content == "Hello."


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_variable_selects_the_real_model(provider: str, capsys: pytest.CaptureFixture[str]):
    prefix = provider.upper()
    real = {f"{prefix}_API_KEY": "secret"}
    with real_or_scripted([Reply()], "small", provider=provider, environ=real) as model:
        assert not model.is_simulated
        (entry,) = model.behind_proxy()["model_list"]
        assert entry["litellm_params"] == {
            "model": f"{provider}/small",
            "api_base": None,
            "api_key": "secret",
        }
    elsewhere = {f"{prefix}_BASE_URL": "http://gpu:8000/v1", f"{prefix}_MODEL": "large"}
    with real_or_scripted([Reply()], "small", provider=provider, environ=elsewhere) as model:
        assert (model.base_url, model.model, model.api_key) == ("http://gpu:8000/v1", "large", None)
    assert capsys.readouterr().err == ""


def test_the_scripted_server_ends_with_the_block():
    with real_or_scripted([Reply()], "gpt", environ={}) as model:
        port = int(str(model.base_url).rpartition(":")[2])
    with ScriptedModels() as other:
        other.port = port  # the port is free again
