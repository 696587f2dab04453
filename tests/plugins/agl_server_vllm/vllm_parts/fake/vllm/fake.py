"""A stand-in for vLLM: its command line, its routes and its processes, and how they fail.

The model's answers are a digest of the weights that are loaded. As in vLLM, what was computed for
a prompt is kept until the prefix cache is reset, so an update that forgets to do so gives old
answers. Faults are words in FAKE_VLLM:

``dies``            ends while it starts
``hangs``           never becomes ready
``stubborn``        ignores SIGTERM
``port-taken``      finds its port taken, the first time
``no-ids``          returns no token ids
``bad-reload``      refuses new weights after it has loaded half of them, once
``worse-reload``    refuses all weights after that
``slow-load``       never answers to the second adapter, which it has loaded
``busy-cache``      resets the prefix cache at the third time of asking
``stuck-cache``     never resets it
``crashes``         ends at the first chat
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from aiohttp import web

FAULTS = os.environ.get("FAKE_VLLM", "").split()
PIDS = os.environ.get("FAKE_VLLM_PIDS")

# An engine with a worker that leaves session and process group, as some executors' do.
ENGINE = """
import os, pathlib, subprocess, sys, time
pathlib.Path(sys.argv[1], str(os.getpid())).touch()
os.write(1, b".")
if len(sys.argv) > 2:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], start_new_session=True)
time.sleep(600)
"""


def digest(folder: str) -> str:
    if not Path(folder).is_dir():
        return folder  # a name on the hub
    file = next(Path(folder).glob("*.safetensors"))
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


class Engine:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.weights = digest(options.model)
        self.adapters: dict[str, str] = {}
        self.cache: dict[tuple[str, str], str] = {}
        self.in_flight = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.going = asyncio.Event()
        self.going.set()
        self.released = asyncio.Event()
        self.resets = 0
        self.reloads = 0

    def answer(self, model: str, prompt: str) -> str:
        key = (model, prompt)
        if key not in self.cache:
            self.cache[key] = f"{self.weights} {self.adapters.get(model, '')}".strip()
        return self.cache[key]

    def names(self) -> list[str]:
        return [*self.options.served_model_name, *self.adapters]


def error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


def routes(engine: Engine) -> web.RouteTableDef:
    table = web.RouteTableDef()

    @table.get("/health")
    async def health(request: web.Request) -> web.Response:
        return web.Response()

    @table.get("/state")  # for tests
    async def state(request: web.Request) -> web.Response:
        paused = not engine.going.is_set()
        return web.json_response({"in_flight": engine.in_flight, "paused": paused})

    @table.post("/release")  # for tests: ends the calls of the user "hold"
    async def release(request: web.Request) -> web.Response:
        engine.released.set()
        return web.Response()

    @table.get("/v1/models")
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in engine.names()]})

    @table.post("/v1/completions")
    async def completions(request: web.Request) -> web.Response:
        body = await request.json()
        if body["model"] not in engine.names():
            return error(404, f"The model `{body['model']}` does not exist.")
        ids = None if "no-ids" in FAULTS else [7]
        return web.json_response({"choices": [{"text": "x", "token_ids": ids}]})

    @table.post("/v1/chat/completions")
    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        if body["model"] not in engine.names():
            return error(404, f"The model `{body['model']}` does not exist.")
        if "crashes" in FAULTS:
            print("CUDA error: an illegal memory access was encountered", flush=True)
            os._exit(3)
        await engine.going.wait()
        engine.in_flight += 1
        engine.idle.clear()
        try:
            text = engine.answer(body["model"], str(body["messages"]))
            if body.get("user") == "hold":
                await engine.released.wait()
        finally:
            engine.in_flight -= 1
            if not engine.in_flight:
                engine.idle.set()
        ids = [1, 2, 3] if body.get("return_token_ids") else None
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": ids}
        usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
        return web.json_response(
            {
                "id": f"chatcmpl-{time.monotonic_ns()}",
                "object": "chat.completion",
                "created": 0,
                "model": engine.options.served_model_name[0],
                "choices": [choice],
                "usage": usage,
                "prompt_token_ids": ids,
            }
        )

    if os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
        dev_routes(engine, table)
    if engine.options.enable_lora and os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1":
        lora_routes(engine, table)
    return table


def dev_routes(engine: Engine, table: web.RouteTableDef) -> None:
    @table.post("/pause")
    async def pause(request: web.Request) -> web.Response:
        assert request.query["mode"] == "wait"
        engine.going.clear()
        await engine.idle.wait()
        return web.json_response({"status": "paused"})

    @table.post("/resume")
    async def resume(request: web.Request) -> web.Response:
        engine.going.set()
        return web.json_response({"status": "resumed"})

    @table.post("/collective_rpc")
    async def collective_rpc(request: web.Request) -> web.Response:
        body = await request.json()
        assert body["method"] == "reload_weights"
        engine.reloads += 1
        fault = next((word for word in FAULTS if word.endswith("-reload")), None)
        if fault == "worse-reload" or (fault == "bad-reload" and engine.reloads == 1):
            engine.weights = "half of each"
            return error(500, "Call to collective_rpc method failed: out of memory")
        engine.weights = digest(body["kwargs"]["weights_path"])
        return web.json_response({"results": [None]})

    @table.post("/reset_prefix_cache")
    async def reset_prefix_cache(request: web.Request) -> web.Response:
        engine.resets += 1
        if "stuck-cache" in FAULTS or ("busy-cache" in FAULTS and engine.resets < 3):
            return web.json_response({"success": False})
        engine.cache.clear()
        return web.json_response({"success": True})


def lora_routes(engine: Engine, table: web.RouteTableDef) -> None:
    @table.post("/v1/load_lora_adapter")
    async def load(request: web.Request) -> web.Response:
        body = await request.json()
        name = body["lora_name"]
        if name in engine.options.served_model_name:
            return error(400, f"The lora adapter '{name}' conflicts with a served base model.")
        if name in engine.adapters and not body.get("load_inplace"):
            return error(400, f"The lora adapter '{name}' has already been loaded.")
        if "bad-reload" in FAULTS and engine.adapters:
            FAULTS.remove("bad-reload")
            if name in engine.adapters:
                engine.adapters[name] = "half of each"
            return error(500, "Loading lora failed")
        engine.adapters[name] = digest(body["lora_path"])
        if "slow-load" in FAULTS and len(engine.adapters) == 2:
            FAULTS.remove("slow-load")
            await asyncio.Event().wait()
        return web.Response(text="Success")

    @table.post("/v1/unload_lora_adapter")
    async def unload(request: web.Request) -> web.Response:
        del engine.adapters[(await request.json())["lora_name"]]
        return web.Response(text="Success")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-lora-rank", type=int)
    parser.add_argument("--max-loras", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--generation-config")
    parser.add_argument("--revision")
    parser.add_argument("--download-dir", "--download_dir")
    options = parser.parse_args(arguments)
    print("(APIServer pid=1) INFO 11-21 19:03:02 [api.py:7] Loading weights", flush=True)
    if "stubborn" in FAULTS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if PIDS:
        Path(PIDS, str(os.getpid())).touch()
        command = [sys.executable, "-c", ENGINE, PIDS, ENGINE]
        engine = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert engine.stdout is not None
        assert engine.stdout.read(2) == b".."  # both are there
    if "hangs" in FAULTS:
        time.sleep(600)
    if "dies" in FAULTS:
        sys.exit("ValueError: No available memory for the cache blocks.")
    if "port-taken" in FAULTS and not Path(os.environ["FAKE_VLLM_ONCE"]).exists():
        Path(os.environ["FAKE_VLLM_ONCE"]).touch()
        sys.exit("OSError: [Errno 98] Address already in use")
    asyncio.run(serve(options))


async def serve(options: argparse.Namespace) -> None:
    key = os.environ.get("VLLM_API_KEY")

    @web.middleware
    async def guard(request: web.Request, handler) -> web.StreamResponse:
        shown = request.headers.get("authorization")
        if key and request.path.startswith("/v1") and shown != f"Bearer {key}":
            return error(401, "Unauthorized")
        return await handler(request)

    app = web.Application(middlewares=[guard])
    app.add_routes(routes(Engine(options)))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, options.host, options.port).start()
    await asyncio.Event().wait()
