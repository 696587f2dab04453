"""Real vLLM on a CPU: weights that are really new, processes that are really gone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from vllm_parts.transformers_process import Transformers

from agl_adapter_trajectory import TraceToTrajectory
from agl_core.errors import LLMServerError
from agl_core.llm_server import put_behind
from agl_proxy_direct import DirectProxy
from agl_server_vllm import VLLMServer
from agl_store_memory import InMemoryLightningStore
from agl_tiny_model import VLLM_CPU_ARGS, VLLM_CPU_ENV

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

TOLERANCE = 1e-4
QUESTIONS = ["How are you?", "Count to five."]

Told = tuple[str, list[int], list[int], list[float]]
"""Text, prompt ids, response ids, log-probabilities."""


async def ask(server: VLLMServer, question: str, model: str | None = None) -> Told:
    async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
        reply = await client.chat.completions.create(
            model=model or server.model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=16,
            logprobs=True,
            extra_body={"return_token_ids": True},
        )
    body = reply.model_dump()
    (choice,) = body["choices"]
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    text = choice["message"]["content"]
    return text, body["prompt_token_ids"], choice["token_ids"], logprobs


def computed(
    transformers: Transformers, model: Path, told: Told, adapter: Path | None = None
) -> list[float]:
    """Return the log-probabilities of the same tokens by Transformers."""
    return transformers.logprobs(model, [(told[1], told[2])], adapter)[0]


# -- whole models --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(policy: VLLMServer) -> VLLMServer:
    return policy


async def test_a_whole_model_is_exchanged(
    whole: VLLMServer, transformers: Transformers, tiny: Path, other: Path
):
    """Each time after its answer was kept in the prefix cache."""
    for folder, version in ((other, "step-1"), (tiny, "step-2"), (other, "step-3")):
        before = await ask(whole, QUESTIONS[0])
        await whole.update_weights(folder, version=version)
        after = await ask(whole, QUESTIONS[0])
        assert after[2] != before[2]
        assert after[3] == pytest.approx(computed(transformers, folder, after), abs=TOLERANCE)
        assert whole.model_version == version


async def test_calls_in_flight_end_with_their_weights(whole: VLLMServer, tiny: Path, other: Path):
    await whole.update_weights(tiny, version="old")
    async with AsyncOpenAI(base_url=whole.base_url, api_key="none") as client:
        stream = await client.completions.create(
            model="policy",
            prompt="Once",
            max_tokens=400,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        chunks = aiter(stream)
        words = [(await anext(chunks)).choices[0].text]
        updating = asyncio.create_task(whole.update_weights(other, version="new"))
        words += [chunk.choices[0].text async for chunk in chunks]
        await updating
        assert len(words) > 100
        await whole.update_weights(tiny, version="old")
        again = await client.completions.create(
            model="policy",
            prompt="Once",
            max_tokens=400,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
    assert "".join(words) == again.choices[0].text


async def test_bad_models_leave_the_old_one(
    whole: VLLMServer, tiny: Path, wide: Path, tmp_path: Path
):
    await whole.update_weights(tiny, version="good")
    before = await ask(whole, QUESTIONS[0])
    tied = tmp_path / "tied"
    shutil.copytree(tiny, tied)
    config = json.loads((tied / "config.json").read_text())
    (tied / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    for folder, why in (
        (tied, "ties its input and output"),
        (wide, "differs from the served model"),
    ):
        with pytest.raises(LLMServerError, match=why):
            await whole.update_weights(folder, version="bad")
    assert (await ask(whole, QUESTIONS[0]), whole.model_version) == (before, "good")
    # Without our checks vLLM loads part of it and its engine dies; the server must notice.
    whole._config = whole._config.model_copy(update={"strict_weights": False})
    with pytest.raises(LLMServerError, match="collective_rpc"):
        await whole.update_weights(wide, version="bad")
    assert not whole.is_running()


# -- adapters ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lora(vllm_python: str, tiny: Path) -> Iterator[VLLMServer]:
    server = VLLMServer(
        tiny,
        model="policy",
        python=vllm_python,
        args=VLLM_CPU_ARGS,
        env=VLLM_CPU_ENV,
        lora=True,
        max_lora_rank=8,
        max_loras=2,
        update_timeout=60,
    )
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


def adapters_of(tiny: Path) -> list[Path]:
    return [tiny.parent / "adapter-1", tiny.parent / "adapter-2"]


async def test_adapters_replace_each_other(
    lora: VLLMServer, transformers: Transformers, tiny: Path
):
    base = await ask(lora, QUESTIONS[0], lora.base_model)
    first = await ask(lora, QUESTIONS[0])
    assert first[2] == base[2]
    assert first[3] == pytest.approx(computed(transformers, tiny, first), abs=TOLERANCE)
    said = []
    for number, folder in enumerate([*adapters_of(tiny), *adapters_of(tiny)]):
        await lora.update_weights(folder, version=f"step-{number}")
        told = await ask(lora, QUESTIONS[0])
        logprobs = computed(transformers, tiny, told, folder)
        assert told[3] == pytest.approx(logprobs, abs=TOLERANCE)
        said.append(told)
    assert said[0] != said[1]
    assert said[:2] == said[2:]
    assert lora.model_version == "step-3"
    assert await ask(lora, QUESTIONS[0], lora.base_model) == base


async def test_an_overwritten_adapter_is_loaded_again(lora: VLLMServer, tiny: Path, tmp_path: Path):
    """vLLM keeps prompts by the adapter's path, so that the old ones' would be found again."""
    folder = tmp_path / "latest"
    said = []
    for adapter in adapters_of(tiny):
        shutil.copytree(adapter, folder, dirs_exist_ok=True)
        await lora.update_weights(folder, version="latest")
        said.append(await ask(lora, QUESTIONS[0]))
        await lora.update_weights(adapter, version="its own path")
        assert await ask(lora, QUESTIONS[0]) == said[-1]
    assert said[0][2] != said[1][2]


async def test_rollouts_side_by_side_have_their_own_adapters(
    lora: VLLMServer, transformers: Transformers, tiny: Path
):
    """At the same time, in the same batch, through the proxy."""
    names = {"explorer": adapters_of(tiny)[0], "exploiter": adapters_of(tiny)[1]}
    for name, folder in names.items():
        await lora.load_adapter(name, folder)
    store = InMemoryLightningStore()
    proxy = DirectProxy(store=store)
    put_behind(proxy, lora)
    await proxy.start()

    async def roll_out(model: str, question: str) -> tuple[str, Told]:
        rollout = await store.start_rollout(input=question)
        llm = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id, model)
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
            await client.chat.completions.create(
                model=llm.model,
                messages=[{"role": "user", "content": question}],
                temperature=1,
                max_tokens=24,
            )
        (row,) = TraceToTrajectory().adapt((await store.query_spans(rollout.rollout_id)).items)
        end = row.prompt_length
        told = ("", row.token_ids[:end], row.token_ids[end:], row.logprobs[end:])
        return model, told

    try:
        rollouts = await asyncio.gather(
            *(roll_out(name, question) for name in names for question in QUESTIONS * 2)
        )
    finally:
        await proxy.stop()
        for name in names:
            await lora.unload_adapter(name)
    for name, told in rollouts:
        logprobs = computed(transformers, tiny, told, names[name])
        assert told[3] == pytest.approx(logprobs, abs=TOLERANCE)


async def test_bad_adapters_leave_the_old_one(lora: VLLMServer, tiny: Path, wide: Path):
    await lora.update_weights(adapters_of(tiny)[0], version="good")
    before = await ask(lora, QUESTIONS[0])
    with pytest.raises(LLMServerError, match="load_lora_adapter"):
        await lora.update_weights(wide.parent / "adapter", version="bad")
    assert (await ask(lora, QUESTIONS[0]), lora.model_version) == (before, "good")


# -- life ----------------------------------------------------------------------------------------


def processes_of(mark: str) -> list[int]:
    """Return the processes that have a variable in their environment."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_text():
                found.append(int(folder.name))
        except (OSError, UnicodeDecodeError):
            continue
    return [pid for pid in found if pid != os.getpid()]


def test_nothing_outlives_an_owner_that_is_killed(vllm_python: str, tiny: Path, tmp_path: Path):
    mark = f"AGL_TEST_MARK={tmp_path}"
    code = (
        "import asyncio, sys\n"
        "from agl_server_vllm import VLLMServer\n"
        "from agl_tiny_model import VLLM_CPU_ARGS, VLLM_CPU_ENV\n"
        "async def main():\n"
        "    server = VLLMServer(sys.argv[1], python=sys.argv[2], args=VLLM_CPU_ARGS,\n"
        "                        env=VLLM_CPU_ENV)\n"
        "    await server.start()\n"
        "    print('ready', flush=True)\n"
        "    await server.wait()\n"
        "asyncio.run(main())\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(tiny), vllm_python],
        env={**os.environ, "AGL_TEST_MARK": str(tmp_path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        assert len(processes_of(mark)) >= 4  # owner, keeper, front, engine
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while processes_of(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(mark) == []


async def test_a_model_that_no_server_has(vllm_python: str, tmp_path: Path):
    server = VLLMServer(
        "nobody/has-this",
        python=vllm_python,
        args=VLLM_CPU_ARGS,
        env=VLLM_CPU_ENV,
        log_file=tmp_path / "vllm.log",
    )
    with pytest.raises(LLMServerError, match=r"ended during its start \(exit code 1\)") as raised:
        await server.start()
    assert re.search(r"^[\w.]*Error: ", str(raised.value), re.MULTILINE)
    assert not server.is_running()


@pytest.mark.parametrize("options", [{}, {"lora": True, "max_lora_rank": 20, "max_loras": 2}])
async def test_the_installed_parser_takes_every_option_that_is_set(
    vllm_python: str, tiny: Path, options: dict[str, Any]
):
    server = VLLMServer(tiny, python=vllm_python, args=VLLM_CPU_ARGS, **options)
    await server.check()
    assert not server.is_running()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"generation-cnfig": "vllm"}, "unrecognized arguments: --generation-cnfig$"),
        ({"max-model-len": "long"}, "argument --max-model-len: invalid .* value: 'long'"),
        ({"enable_auto_tool_choice": True}, "--enable-auto-tool-choice requires --tool-call-par"),
    ],
)
async def test_the_installed_parser_refuses_an_option(
    vllm_python: str, tiny: Path, args: dict[str, Any], message: str
):
    server = VLLMServer(tiny, python=vllm_python, args=args)
    with pytest.raises(LLMServerError, match=rf"^vLLM \d\S* refuses its options: {message}"):
        await server.check()
