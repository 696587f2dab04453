"""Transformers in a process of its own, where it is installed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

SCRIPT = Path(__file__).with_name("hf_logprobs.py")


class Transformers:
    """Computes log-probabilities; a context manager.

    Args:
        python: An interpreter that has torch and transformers.
        log: Where it writes what goes wrong.
    """

    def __init__(self, python: str, log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [python, "-I", str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> Transformers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def logprobs(
        self,
        model: Path,
        rows: Sequence[tuple[list[int], list[int]]],
        adapter: Path | None = None,
    ) -> list[list[float]]:
        """Return the log-probabilities of each row's response, given its prompt."""
        asked = {
            "model": str(model),
            "adapter": None if adapter is None else str(adapter),
            "rows": [{"prompt": prompt, "response": response} for prompt, response in rows],
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        return json.loads(line)
