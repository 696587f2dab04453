"""Small environments, made with OpenEnv's own classes and served by its own server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import uvicorn
from fastmcp import FastMCP
from openenv.core import Action, Environment, MCPEnvironment, Observation, State, create_app


class Move(Action):
    direction: Literal["north", "south"]


class Room(Observation):
    text: str


class Corridor(Environment[Move, Room, State]):
    """A corridor of four rooms with a door at its north end; a seed is a number of a room."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    open_now = 0
    most_open = 0

    def __init__(self) -> None:
        super().__init__()
        cls = type(self)
        cls.open_now += 1
        cls.most_open = max(cls.most_open, cls.open_now)
        self._room = 0

    def reset(self, seed=None, episode_id=None, length=4, **kwargs) -> Room:
        if length < 1:
            raise LookupError("no corridor\nof that length")
        self._door = length
        self._room = (seed or 0) % length
        return self._seen(None)

    def step(self, action, timeout_s=None, **kwargs) -> Room:
        self._room += 1 if action.direction == "north" else -1
        if self._room < 0:
            raise LookupError("there is no room\nto the south")
        return self._seen(1.0 if self._room == self._door else -0.125)

    def _seen(self, reward: float | None) -> Room:
        text = f"Room {self._room} of {self._door}."
        return Room(text=text, reward=reward, done=self._room == self._door)

    @property
    def state(self) -> State:
        return State()

    def get_metadata(self) -> Any:
        metadata = super().get_metadata()
        return metadata.model_copy(update={"description": "Find the door in the north."})

    def close(self) -> None:
        type(self).open_now -= 1


class Bet(Action):
    number: int
    stake: float
    note: str = ""


class Outcome(Observation):
    drawn: int
    comment: str | None = None


class Lottery(Environment[Bet, Outcome, State]):
    """Two draws of the number 7; a bet on it wins its stake, another one loses it."""

    def reset(self, seed=None, episode_id=None, **kwargs) -> Outcome:
        self._draws = 0
        return Outcome(drawn=0, metadata={"secret": 7})

    def step(self, action, timeout_s=None, **kwargs) -> Outcome:
        self._draws += 1
        won = action.stake if action.number == 7 else -action.stake
        return Outcome(drawn=7, comment=action.note, reward=won, done=self._draws == 2)

    @property
    def state(self) -> State:
        return State()


class Tools(MCPEnvironment):
    """A tool that shouts; an action is a tool call."""

    def __init__(self) -> None:
        tools = FastMCP("tools")
        tools.tool(shout)
        super().__init__(tools)

    def reset(self, seed=None, episode_id=None, **kwargs) -> Observation:
        return Observation()

    def _step_impl(self, action, timeout_s=None, **kwargs) -> Observation:
        return Observation(done=True)

    @property
    def state(self) -> State:
        return State()


def shout(text: str) -> str:
    return text.upper()


@contextmanager
def server(
    environment: type[Any], action: type[Any], observation: type[Any], sessions: int = 1
) -> Iterator[str]:
    """Serve an environment on loopback and yield its address."""
    app = create_app(environment, action, observation, max_concurrent_envs=sessions)
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    running = Server(uvicorn.Config(app, port=0, log_level="error", ws="websockets-sansio"))
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        assert started.wait(30)
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join(30)
