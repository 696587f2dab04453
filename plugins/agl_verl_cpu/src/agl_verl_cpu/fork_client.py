"""Starts one Python program as a fork of the fork server; stands in for the program meanwhile.

``python fork_client.py ADDRESS PROGRAM ARGUMENTS…`` is what Ray runs instead of
``python PROGRAM ARGUMENTS…``. It imports only the standard library, because it runs per worker.
"""

from __future__ import annotations

import json
import os
import socket
import sys

__all__ = ["main"]


def main() -> None:
    """Send program, environment and standard streams to the server; return at the fork's end."""
    address, *arguments = sys.argv[1:]
    request = {
        "arguments": arguments,
        "folder": os.getcwd(),  # noqa: PTH109 -- pathlib takes longer to import than all of this
        "environment": dict(os.environ),
    }
    body = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
        except OSError:
            # The server was killed. The program starts without it, but takes longer.
            os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606
        socket.send_fds(connection, [len(body).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(body)
        connection.recv(1)  # the fork holds the other end open and sends nothing


if __name__ == "__main__":
    main()
