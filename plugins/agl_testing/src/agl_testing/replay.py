"""Regression tests for agents: one pytest test per recorded rollout of a suite.

::

    @pytest.mark.agl_suite("suite.jsonl")       # made by `agl eval FILE --record suite.jsonl`
    def test_agent(agl_replay):
        result = agl_replay(solve)              # fails if the agent asks something else
        assert result.reward == 1.0
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from agl_core.agent import LitAgent

if TYPE_CHECKING:
    from agl_replay import Recording, ReplayResult

__all__ = ["Replay", "agl_recording", "agl_replay", "parametrize_recordings"]


class Replay(Protocol):
    """The value of the fixture ``agl_replay``."""

    def __call__(
        self, agent: LitAgent[Any], *, strict: bool = True, **options: Any
    ) -> ReplayResult:
        """Replay the test's recording, without a model server.

        Args:
            agent: The agent.
            strict: Fail the test if the agent's calls, reward or spans differ from the recording.
            options: Further arguments of :func:`agl_replay.replay`.
        """
        ...


def parametrize_recordings(metafunc: pytest.Metafunc) -> None:
    """Make a test with ``agl_recording`` among its fixtures one test per recording of its suite.

    Raises:
        pytest.UsageError: The test has no mark ``agl_suite``, or its suite cannot be read.
    """
    if "agl_recording" not in metafunc.fixturenames:
        return
    where = metafunc.definition.nodeid
    mark = metafunc.definition.get_closest_marker("agl_suite")
    if mark is None or len(mark.args) != 1:
        raise pytest.UsageError(f'{where} needs @pytest.mark.agl_suite("suite.jsonl")')
    try:
        from agl_core.runner import call_replayer

        named = call_replayer("read_suite", path=metafunc.definition.path.parent / mark.args[0])
    except Exception as error:
        raise pytest.UsageError(f"{where}: {error}") from error
    names, recordings = zip(*named, strict=True)
    metafunc.parametrize("agl_recording", recordings, ids=names, indirect=True)


@pytest.fixture
def agl_recording(request: pytest.FixtureRequest) -> Recording:
    """The recorded rollout of this test, from the suite that the mark ``agl_suite`` names."""
    return request.param


@pytest.fixture
def agl_replay(agl_recording: Recording) -> Replay:
    """A function that runs an agent on the recorded rollout of this test (:class:`Replay`)."""
    from agl_core.runner import call_replayer

    async def replay(agent: LitAgent[Any], options: dict[str, Any]) -> ReplayResult:
        return await call_replayer(
            "replay_rollout", agent=agent, recorded=agl_recording, store=None, options=options
        )

    def run(agent: LitAgent[Any], *, strict: bool = True, **options: Any) -> ReplayResult:
        result = asyncio.run(replay(agent, options))
        if strict and not result.same:
            pytest.fail(str(result), pytrace=False)
        return result

    return run
