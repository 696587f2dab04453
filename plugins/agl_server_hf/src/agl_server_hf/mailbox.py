"""From the engine's thread to the event loop: one wake-up per step, whatever it has emitted."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from agl_server_hf.engine import Engine
from agl_server_hf.generation import Generation, Token
from agl_server_hf.protocol import Choice

__all__ = ["Job", "Mailbox"]


@dataclass(eq=False, slots=True)
class Job:
    """The sequences of a request.

    Attributes:
        streams: Whether the answers are streamed; otherwise only their last tokens are events.
        choices: The answers.
        generations: Their sequences in the engine.
        events: What the engine has emitted and nobody has read yet.
        arrived: Set when there are events.
    """

    streams: bool
    choices: list[Choice] = field(default_factory=list[Choice])
    generations: list[Generation] = field(default_factory=list[Generation])
    events: deque[tuple[Choice, Token | Exception]] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class Mailbox:
    """Hands what the engine's thread emits to the event loop, with one wake-up per step.

    Args:
        engine: The engine; it calls the mailbox after its steps.
    """

    def __init__(self, engine: Engine) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._letters: list[tuple[Job, Choice, Token | Exception]] = []
        engine.after_step = self.flush

    def open(self) -> None:
        """Deliver to the running event loop."""
        self._loop = asyncio.get_running_loop()

    def put(self, job: Job, choice: Choice, token: Token | Exception) -> None:
        """Keep an event until the step ends. Called in the engine's thread."""
        self._letters.append((job, choice, token))

    def flush(self) -> None:
        """Hand over what was kept. Called in the engine's thread."""
        letters, self._letters = self._letters, []
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._deliver, letters)

    @staticmethod
    def _deliver(letters: list[tuple[Job, Choice, Token | Exception]]) -> None:
        for job, choice, token in letters:
            job.events.append((choice, token))
            job.arrived.set()
