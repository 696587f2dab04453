"""The server's own process: ``python -m agl_server_hf.worker CONFIG``.

Its parent controls it through its standard streams, one JSON object per line, which are out of the
network's reach. Input: ``{"path", "adapter"}`` orders other weights, of the server's own model
(``null``) or of an adapter. Output: ``{"ok", "error",
"port"}``, once when the server is ready and once after each order. The process ends when its input
ends: the parent stopped it, or the parent is dead.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from transformers import AutoTokenizer

from agl_server_hf.app import build_app
from agl_server_hf.budget import context_length
from agl_server_hf.config import HFServerConfig
from agl_server_hf.engine import Engine
from agl_server_hf.threads import default_threads
from agl_server_hf.weights import choose_device, choose_dtype, load_model, with_weights
from agl_serving import bind_socket

__all__ = ["freeze", "main"]

logger = logging.getLogger(__name__)


def main() -> None:
    """Serve until the input ends."""
    reply = _take_stdout()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = HFServerConfig.model_validate_json(sys.argv[1])
        adapters: set[str] = set()
        engine, app = _build(config, adapters)
        listener = bind_socket(config.host, config.port)
    except Exception as error:
        logger.exception("the server cannot start")
        reply({"ok": False, "error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
    )
    freeze()
    engine.start()
    threading.Thread(
        target=_follow_orders, args=(engine, adapters, reply), name="orders", daemon=True
    ).start()
    # The socket is listening: connections made before uvicorn accepts wait in its backlog.
    reply({"ok": True, "port": listener.getsockname()[1]})
    asyncio.run(server.serve([listener]))


def freeze() -> None:
    """Leave what lives now out of later collections of garbage.

    Else each of them visits the model and the modules of its libraries, more than a million
    objects, to free what a few answers have left behind.
    """
    gc.collect()
    gc.freeze()


def _take_stdout() -> Callable[[dict[str, Any]], None]:
    """Reserve the standard output for replies; what libraries print goes to the error output."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    return reply


def _build(config: HFServerConfig, adapters: set[str]) -> tuple[Engine, Starlette]:
    threads = config.threads or default_threads(shared=True)
    torch.set_num_threads(1)  # the engine's thread alone has a pool of threads
    device = choose_device(config.device)
    model = load_model(config.path, dtype=choose_dtype(config.dtype, device), device=device)
    tokenizer = AutoTokenizer.from_pretrained(config.path, local_files_only=True)
    if config.chat_template is not None:
        tokenizer.chat_template = config.chat_template
    # Models name their end tokens in up to three places, and not the same ones in each.
    eos_ids = {tokenizer.eos_token_id}
    for declared in (model.generation_config.eos_token_id, model.config.eos_token_id):
        eos_ids.update(declared if isinstance(declared, list) else [declared])
    max_length = config.max_model_len or context_length(model)
    engine = Engine(
        model,
        eos_ids=[token for token in eos_ids if token is not None],
        max_batch=config.max_batch_size,
        seed=config.seed,
        max_length=max_length,
        cache_tokens=config.cache_tokens,
        threads=threads,
    )
    if max_length > engine.cache_tokens:
        if config.max_model_len is not None:
            raise ValueError(
                f"max_model_len is {max_length}, and the key-value cache has room for "
                f"{engine.cache_tokens} tokens: lower max_model_len, or raise cache_tokens"
            )
        max_length = engine.cache_tokens
        logger.warning("sequences are limited to %d tokens: the cache holds no more", max_length)
    app = build_app(
        engine,
        tokenizer,
        model=config.served_name,
        max_length=max_length,
        adapters=adapters,
        reasoning=config.reasoning,
        # Tokenizers may have more tokens than the model has embeddings, and the other way round.
        vocabulary=len(model.get_input_embeddings().weight),
    )
    return engine, app


def _follow_orders(
    engine: Engine, adapters: set[str], reply: Callable[[dict[str, Any]], None]
) -> None:
    """Load the weights that the parent orders, until the input ends; add new adapters' names."""
    for line in sys.stdin:
        order = json.loads(line)
        try:
            path, adapter = order["path"], order["adapter"]
            engine.change(partial(with_weights, path=path, adapter=adapter)).result()
        except Exception as error:
            reply({"ok": False, "error": str(error)})
        else:
            if adapter is not None:
                adapters.add(adapter)
            reply({"ok": True})
    os._exit(0)  # nothing needs saving, and the calls in flight have lost their caller


if __name__ == "__main__":
    main()
