"""Runs every building block, each in a process of its own.

python examples/building_blocks/main.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

BLOCKS = ("store", "server", "tracer", "runner", "metrics", "proxy")


def main() -> int:
    rows: list[str] = []
    failed = 0
    for block in BLOCKS:
        path = Path(__file__).with_name(f"{block}_alone.py")
        print(f"== {path.name}", flush=True)
        started = time.monotonic()
        code = subprocess.run([sys.executable, path], check=False).returncode
        seconds = time.monotonic() - started
        failed += bool(code)
        lines = len(path.read_text().splitlines())
        rows.append(f"{block:8} {lines:5} {seconds:8.1f}  {f'exit {code}' if code else 'ran'}")
    print("\nblock    lines  seconds  result", *rows, sep="\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
