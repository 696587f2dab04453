"""Replay of recorded rollouts: run an agent again without a model server, and compare.

::

    result = await replay(agent, rollout_id, store)
    assert result.same, result.divergence
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_replay.counterfactual import Counterfactual, what_if
    from agl_replay.differences import Difference
    from agl_replay.forking import fork, fork_requests, fork_requests_at
    from agl_replay.recording import (
        NotReplayableError,
        RecordedCall,
        RecordedOperation,
        Recording,
        read_recording,
    )
    from agl_replay.regression import SuiteResult, replay_suite
    from agl_replay.replaying import ReplayResult, replay
    from agl_replay.session import Divergence, ReplayDivergenceError
    from agl_replay.suites import Suite, read_recordings, read_suite, write_suite

__all__ = [
    "Counterfactual",
    "Difference",
    "Divergence",
    "NotReplayableError",
    "RecordedCall",
    "RecordedOperation",
    "Recording",
    "ReplayDivergenceError",
    "ReplayResult",
    "Suite",
    "SuiteResult",
    "fork",
    "fork_requests",
    "fork_requests_at",
    "read_recording",
    "read_recordings",
    "read_suite",
    "replay",
    "replay_suite",
    "what_if",
    "write_suite",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Counterfactual", "what_if"), "agl_replay.counterfactual"),
        "Difference": "agl_replay.differences",
        **dict.fromkeys(("Divergence", "ReplayDivergenceError"), "agl_replay.session"),
        "NotReplayableError": "agl_replay.recording",
        "RecordedCall": "agl_replay.recording",
        "RecordedOperation": "agl_replay.recording",
        "Recording": "agl_replay.recording",
        "ReplayResult": "agl_replay.replaying",
        "fork": "agl_replay.forking",
        **dict.fromkeys(("fork_requests", "fork_requests_at"), "agl_replay.forking"),
        "read_recording": "agl_replay.recording",
        "replay": "agl_replay.replaying",
        **dict.fromkeys(("SuiteResult", "replay_suite"), "agl_replay.regression"),
        **dict.fromkeys(
            ("Suite", "read_recordings", "read_suite", "write_suite"), "agl_replay.suites"
        ),
    },
)
