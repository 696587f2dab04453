"""The server's own process: ``python -m agl_algo_grpo.hf.worker CONFIG``.

It is driven through its standard streams, one JSON object a line, which nobody on the network can
reach: ``{"path", "version"}`` comes in and asks for other weights; ``{"ok", "error", "port"}`` goes
out, first when it is ready and then after each order. When its input ends, by a stop or because the
process that started it is gone, it ends as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import uvicorn
from transformers import AutoTokenizer

from agl_algo_grpo.config import HFServerConfig
from agl_algo_grpo.hf.app import App
from agl_algo_grpo.hf.engine import Engine
from agl_algo_grpo.hf.weights import choose_device, choose_dtype, load_model, with_weights
from agl_serving import bind_socket

__all__ = ["main"]


def main() -> None:
    """Serve until the input ends."""
    tell = _take_stdout()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = HFServerConfig.model_validate_json(sys.argv[1])
        engine, app = _build(config)
        listener = bind_socket(config.host, config.port)
    except Exception as error:
        logging.getLogger(__name__).exception("the server does not start")
        tell({"ok": False, "error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
    )
    engine.start()
    threading.Thread(target=_obey, args=(engine, tell), name="orders", daemon=True).start()
    # The socket listens already: who comes now waits in its backlog.
    tell({"ok": True, "port": listener.getsockname()[1]})
    asyncio.run(server.serve([listener]))


def _take_stdout() -> Callable[[dict[str, Any]], None]:
    """Keep the standard output for messages; what libraries print goes to the error output."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    return tell


def _build(config: HFServerConfig) -> tuple[Engine, App]:
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = choose_device(config.device)
    model = load_model(config.path, dtype=choose_dtype(config.dtype, device), device=device)
    tokenizer = AutoTokenizer.from_pretrained(config.path, local_files_only=True)
    if config.chat_template is not None:
        tokenizer.chat_template = config.chat_template
    ends = {tokenizer.eos_token_id}
    for said in (model.generation_config.eos_token_id, model.config.eos_token_id):
        ends.update(said if isinstance(said, list) else [said])
    engine = Engine(
        model,
        eos_ids=[end for end in ends if end is not None],
        max_batch=config.max_batch_size,
        seed=config.seed,
    )
    longest = config.max_model_len or getattr(model.config, "max_position_embeddings", 4096)
    return engine, App(engine, tokenizer, model=config.served_name, max_length=longest)


def _obey(engine: Engine, tell: Callable[[dict[str, Any]], None]) -> None:
    """Change the weights as told, until nobody tells any more."""
    for line in sys.stdin:
        order = json.loads(line)
        try:
            engine.change(lambda model, path=order["path"]: with_weights(model, path)).result()
        except Exception as error:
            tell({"ok": False, "error": str(error)})
        else:
            tell({"ok": True})
    os._exit(0)  # there is nothing to save, and calls in flight have lost their caller


if __name__ == "__main__":
    main()
