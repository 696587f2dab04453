"""``agl proxy --backend litellm``."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from typing import Any

from openai import AsyncOpenAI

from agl_core.types import AttemptedRollout
from agl_scripted import ScriptedModels, tokenize
from agl_store_http import LightningStoreServer
from agl_store_memory import InMemoryLightningStore


async def test_the_command_serves_litellms_proxy(
    models: ScriptedModels, store: InMemoryLightningStore, claim: AttemptedRollout, spans: Any
):
    server = LightningStoreServer(store, port=0)
    await server.start()
    options = ["--backend", "litellm", "--port", "0", "--store", server.endpoint]
    named = ["--model", f"q={models.base_url}", "--model", f"r=mistral/R@{models.base_url}"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agl_cli_kit", "proxy", *options, *named, "--api-key", "k"),
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 90)).decode()
        found = re.search(r"http://\S+", line)
        assert found, line
        path = f"/rollout/{claim.rollout_id}/attempt/{claim.attempt.attempt_id}/v1"
        url = found[0].replace("/v1", path)
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            for model in ("q", "r"):
                messages: Any = [{"role": "user", "content": "hi"}]
                made = await client.chat.completions.create(model=model, messages=messages)
                assert made.choices[0].message.content == "Hello there my friend"
        ids = [token.id for token in tokenize("Hello there my friend")]
        found_ids = [span.attributes.get("response_token_ids") for span in await spans()]
        assert found_ids == [ids, None]
        process.send_signal(signal.SIGTERM)
        rest, _ = await asyncio.wait_for(process.communicate(), 30)
        assert rest.decode().strip().endswith("Stopped")
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
        await server.stop()
