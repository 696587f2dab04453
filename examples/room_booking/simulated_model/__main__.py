"""Serve the simulated model until Ctrl+C: ``python -m simulated_model --port 8000``.

Prints its base URL on standard output when it listens; logs go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys

import uvicorn

from simulated_model.model import MODEL_NAME, SimulatedModel
from simulated_model.server import create_app


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m simulated_model", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--seed", type=int, default=0, help="seed of slips and proposals")
    parser.add_argument("--slip", type=float, default=0.02, help="probability of forgetting a rule")
    parser.add_argument(
        "--until-stdin-closes", action="store_true", help="end when standard input closes"
    )
    options = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", options.port), backlog=1024)
    # Without TCP_NODELAY a reply in two segments waits 40 ms for the client's delayed
    # acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    print(f"SIMULATED model {MODEL_NAME!r} at {url}: not a language model", file=sys.stderr)
    print(url, flush=True)
    app = create_app(SimulatedModel(options.seed, options.slip))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    asyncio.run(serve(server, listener, options.until_stdin_closes))


async def serve(server: uvicorn.Server, listener: socket.socket, until_stdin_closes: bool) -> None:
    watching = None
    if until_stdin_closes:
        watching = asyncio.create_task(stop_with_stdin(server))
    await server.serve(sockets=[listener])
    if watching is not None:
        watching.cancel()


async def stop_with_stdin(server: uvicorn.Server) -> None:
    """Stop the server at the end of stdin, which closes when the parent process ends or dies."""
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True


if __name__ == "__main__":
    main()
