"""``agl.LLMProxy(…)`` as version 0.3 makes its proxy."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from openai import AsyncOpenAI

import agl_core as agl
from agl_core.errors import ConfigError
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels
from agl_serving import PythonServerLauncherArgs
from agl_store_memory import InMemoryLightningStore

MODELS = [
    {
        "model_name": "qwen",
        "litellm_params": {"model": "openai/qwen", "api_base": "http://127.0.0.1:1/v1"},
    }
]


def make(*args: Any, **options: Any) -> Any:
    return agl.LLMProxy(*args, **options)  # pyright: ignore[reportAbstractUsage]


def test_it_is_the_default_proxy() -> None:
    store = InMemoryLightningStore(thread_safe=True)
    for proxy in (make(port=0, model_list=MODELS, store=store), make(0, MODELS, store)):
        assert isinstance(proxy, DirectProxy)
        assert proxy.get_store() is store
        assert proxy.get_model_list() == MODELS


def test_it_pickles() -> None:
    copy = pickle.loads(pickle.dumps(make(model_list=MODELS)))
    assert copy.get_model_list() == MODELS


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1, "callbacks": None, "middlewares": None, "litellm_config": None},
        {"callbacks": ["return_token_ids", "opentelemetry"]},
        {"middlewares": ["rollout_attempt", "stream_conversion"], "launch_mode": "thread"},
        {"num_workers": 1, "launch_mode": "mp"},
    ],
)
def test_options_that_ask_for_what_it_does_anyway_are_accepted(options: dict[str, Any]) -> None:
    assert isinstance(make(model_list=MODELS, **options), DirectProxy)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_workers": 4}, "num_workers"),
        ({"callbacks": [object]}, "callbacks"),
        ({"middlewares": ["message_inspection"]}, "middlewares"),
        ({"litellm_config": {"router_settings": {}}}, "litellm_config"),
        ({"launcher_args": PythonServerLauncherArgs(n_workers=2)}, "launcher_args.n_workers"),
        (
            {"port": 1, "launcher_args": PythonServerLauncherArgs(port=2)},
            "port is given twice",
        ),
        ({"launcher_args": {"port": 2}}, "launcher_args"),
    ],
)
def test_an_option_without_an_equivalent_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make(model_list=MODELS, **options)


async def test_launcher_args_may_hold_the_address() -> None:
    args = PythonServerLauncherArgs(host="127.0.0.1", port=0, launch_mode="thread")
    store = InMemoryLightningStore(thread_safe=True)
    proxy = make(model_list=MODELS, store=store, launcher_args=args)
    await proxy.start()
    try:
        assert proxy.base_url.startswith("http://127.0.0.1:")
    finally:
        await proxy.stop()


PAID = [
    {"model_name": "gpt", "litellm_params": {"model": "openai/gpt-4.1"}},
    {"model_name": "claude", "litellm_params": {"model": "anthropic/claude", "api_key": "own"}},
    *MODELS,
]


@pytest.mark.parametrize("set_later", [False, True])
def test_addresses_and_keys_of_providers_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, set_later: bool
) -> None:
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{name}_BASE_URL", f"http://{name.lower()}.local/v1")
        monkeypatch.setenv(f"{name}_API_KEY", f"key of {name}")
    proxy = make(model_list=[] if set_later else PAID)
    if set_later:
        proxy.update_model_list(PAID)
    assert proxy.get_model_list() == PAID
    found = {each.model_name: (each.api_base, each.api_key) for each in proxy._backends}
    assert found == {
        "gpt": ("http://openai.local/v1", "key of OPENAI"),
        "claude": ("http://anthropic.local/v1", "own"),
        "qwen": ("http://127.0.0.1:1/v1", None),
    }


@pytest.mark.parametrize("value", [None, ""])
def test_without_variables_the_addresses_are_the_providers(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "")
        if value is None:
            monkeypatch.delenv(name)
    (backend,) = make(model_list=PAID[:1])._backends
    assert (backend.api_base, backend.api_key) == ("https://api.openai.com/v1", None)


async def test_a_call_goes_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedModels([Reply("Paris")]) as models:
        monkeypatch.setenv("OPENAI_BASE_URL", models.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
        proxy = make(model_list=PAID[:1], store=InMemoryLightningStore(thread_safe=True))
        await proxy.start()
        try:
            async with AsyncOpenAI(base_url=f"{proxy.base_url}/v1", api_key="agent's") as client:
                answer = await client.chat.completions.create(
                    model="gpt", messages=[{"role": "user", "content": "France?"}]
                )
        finally:
            await proxy.stop()
    assert answer.choices[0].message.content == "Paris"
    assert models.requests[0].headers["authorization"] == "Bearer from the environment"
