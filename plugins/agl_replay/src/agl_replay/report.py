"""The outcome of a replay as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agl_replay.differences import ABSENT

if TYPE_CHECKING:
    from agl_replay.replaying import ReplayResult

__all__ = ["changed_at", "result_as_json", "result_lines", "reward_text"]

_SHOWN: Final = 10
"""Spans and calls that are listed."""


def result_as_json(result: ReplayResult) -> dict[str, Any]:
    """Return a result for ``--json``."""
    divergence = result.divergence
    return {
        "rollout_id": result.recording.rollout.rollout_id,
        "attempt_id": result.recording.attempt.attempt_id,
        "same": result.same,
        "calls": len(result.recording.calls),
        "answered": result.answered,
        "live": result.live,
        "stopped": result.stopped,
        "unasked": [call.number for call in result.unasked],
        "reward": {"then": result.recording.reward, "now": result.reward},
        "divergence": divergence
        and {
            "call": divergence.number,
            "operation": divergence.operation or None,
            "differences": [
                {"place": one.place, "then": _value(one.then), "now": _value(one.now)}
                for one in divergence.differences
            ],
        },
        "differing_spans": [] if result.stopped else list(result.differing_spans),
        "error": None if result.error is None else str(result.error),
        "seconds": result.seconds,
    }


def _value(value: Any) -> Any:
    return None if value is ABSENT else value


def result_lines(result: ReplayResult) -> list[str]:
    """Return a result as lines of text."""
    recording = result.recording
    calls = f"{result.answered} of {len(recording.calls)} calls answered from the recording"
    if result.live:
        calls += f", {result.live} by the live model"
    lines = [f"rollout {recording.rollout.rollout_id}: {calls}, {result.seconds:.2f} s"]
    if result.divergence is not None:
        lines.append(str(result.divergence))
    if result.stopped:
        return [*lines, f"stopped after call {result.answered}"]
    if result.unasked:
        numbers = ", ".join(str(call.number) for call in result.unasked[:_SHOWN])
        lines.append(f"the agent did not make these calls of the recording: {numbers}")
    then, now = reward_text(recording.reward), reward_text(result.reward)
    lines.append(f"reward: {then} then, {now} now")
    if result.error is not None and result.divergence is None:
        lines.append(f"the agent failed: {result.error}")
    if result.same:
        return [*lines, "same calls, reward and spans"]
    if result.divergence is None and result.differing_spans:
        lines.append(f"{len(result.differing_spans)} spans differ:")
        lines += [f"  {text}" for text in result.differing_spans[:_SHOWN]]
    return lines


def changed_at(result: ReplayResult) -> str:
    """Return the first place at which a replay differs from its recording, or an empty text."""
    divergence = result.divergence
    if divergence is not None:
        places = [one.place for one in divergence.differences]
        return f"{divergence.where}: {places[0] if places else 'not recorded'}"
    if result.unasked:
        return f"call {result.unasked[0].number}: not made"
    if result.reward != result.recording.reward:
        return "reward"
    if result.differing_spans:
        return "span " + result.differing_spans[0][2:].split(" ", 1)[0]
    return ""


def reward_text(value: float | None) -> str:
    """Return a reward for a line of text."""
    return "none" if value is None else f"{value:.4g}"
