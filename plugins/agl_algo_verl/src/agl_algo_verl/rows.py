"""Rows to train on, from the spans of a rollout, token for token.

There are two aggregations. ``transition``: each model call is a row. ``trajectory``: calls that
continue each other token by token are one row; the text that the agent inserted between them has
mask 0. Both use the core's adapters, so a row holds the tokens that the server read and sampled. No
text is tokenised again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from agl_adapter_trajectory import TraceToTrajectory, TrajectoryRow
from agl_adapters import (
    LlmProxyTraceToTriplet,
    TracerTraceToTriplet,
    altered_sampling,
    other_sampling,
)
from agl_core import semconv
from agl_core.adapter import Adapter, AdapterReport, TraceToTripletBase
from agl_core.errors import ConfigError
from agl_core.types import Span, Triplet
from agl_credit import Turn, row_turns

__all__ = ["Call", "Fit", "Row", "RowBuilder", "fit_rows"]

Aggregation = Literal["transition", "trajectory"]
_MODEL: Final = "gen_ai.request.model"
_RESPONSE: Final = "gen_ai.response.id"


@dataclass(frozen=True, slots=True)
class Call:
    """One model call of a row.

    Attributes:
        start: Position of its first token in the row's response.
        end: Position after its last token.
        turn: The call as the estimators of credit by turn see it.
        span_id: Its span.
        order: Place among the calls of its rollout; ascending, with gaps.
    """

    start: int
    end: int
    turn: Turn
    span_id: str
    order: int


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence to train on.

    Attributes:
        prompt_ids: Tokens before the first sampled one; at least one.
        response_ids: The tokens after the prompt: sampled ones, and inserted ones between them.
        mask: As long as ``response_ids``; 1 where the token was sampled, else 0.
        logprobs: As long as ``response_ids``; the natural log-probability each token was sampled
            with, 0.0 where ``mask`` is 0. None if they were not captured, or are not those of the
            distribution that was sampled, as with a penalty.
        versions: Oldest and newest weights that sampled its tokens; None if the spans have none.
        turns: Number of model calls in the row.
        calls: These calls, where credit by turn needs them; else empty.
        otherwise: Parameters, as ``name=value``, with which its calls were sampled and which are
            not those of training.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float] | None
    versions: tuple[int, int] | None
    turns: int = 1
    calls: tuple[Call, ...] = ()
    otherwise: tuple[str, ...] = ()


class RowBuilder:
    """Makes rows of the spans of one attempt.

    Args:
        aggregation: Unit of a row.
        adapter: The run's adapter. Its choice of model calls applies to both aggregations.
        by_turn: Whether rows have their calls.

    Attributes:
        adapter: Makes the rows' tokens.
        models: Names of the model in training. Calls that name another model make no rows; None:
            all calls do.

    Raises:
        ConfigError: The adapter makes neither triplets nor trajectories.
    """

    def __init__(
        self, aggregation: Aggregation, adapter: Adapter[Any, Any], *, by_turn: bool = False
    ) -> None:
        self.adapter: Adapter[Any, Any]
        self.models: Collection[str] | None = None
        self._whole = aggregation == "trajectory"
        self._by_turn = by_turn
        if isinstance(adapter, TraceToTrajectory):
            self.adapter = adapter
        elif not isinstance(adapter, TraceToTripletBase):
            raise ConfigError(
                "VERL trains on token ids: give the trainer the adapter 'triplet' or 'trajectory', "
                f"not a {type(adapter).__qualname__}",
                path="adapter",
            )
        elif isinstance(adapter, TracerTraceToTriplet):
            self.adapter = _trajectory_like(adapter) if self._whole or by_turn else adapter
        else:
            # Trajectories read a proxy's spans, too.
            keep = isinstance(adapter, LlmProxyTraceToTriplet) and adapter.keep_auxiliary
            self.adapter = TraceToTrajectory(keep_auxiliary=keep)

    def build(
        self, spans: Sequence[Span], trained: Mapping[str, float] | None = None
    ) -> tuple[list[Row], AdapterReport]:
        """Return the rows, in the order of their first calls, and a report.

        Calls without token ids are dropped and counted in the report.

        Args:
            spans: Spans of the attempt.
            trained: Sampling parameters of training, with which those of calls are compared; None
                compares nothing.
        """
        if self.models is not None:
            models = {None, *self.models}
            spans = [span for span in spans if span.attributes.get(_MODEL) in models]
        if not spans:
            return [], AdapterReport()
        found, report = self.adapter.adapt_with_report(spans)
        otherwise = _Otherwise(spans, trained)
        if isinstance(self.adapter, TraceToTrajectory):
            versions = {span.span_id: _versions(span) for span in spans}
            places = {span.span_id: span.sequence_id for span in spans}
            rows: list[Row] = []
            for trajectory in found:
                calls = _calls(trajectory, places) if self._by_turn else ()
                if self._whole:
                    rows.append(_row(trajectory, versions, calls, otherwise))
                else:
                    rows += _split(trajectory, versions, calls, otherwise)
            return rows, report
        answers = [span for span in spans if _RESPONSE in span.attributes]
        by_response = {span.attributes[_RESPONSE]: _versions(span) for span in answers}
        altered = [span for span in answers if altered_sampling(span.attributes)]
        altered_ids = set[Any](span.attributes[_RESPONSE] for span in altered)
        return list(_from_triplets(found, by_response, altered_ids, otherwise, report)), report


def _trajectory_like(adapter: TracerTraceToTriplet) -> TraceToTrajectory:
    """Return a trajectory adapter with the same choice of calls as a triplet adapter."""
    made = TraceToTrajectory(
        reward_match=adapter.reward_match,
        repair_hierarchy=adapter.repair_hierarchy,
        keep_auxiliary=adapter.keep_auxiliary,
    )
    made.rules = adapter.rules
    return made


# -- rows of trajectories --------------------------------------------------------------------------

Versions = tuple[int, int] | None


def _calls(trajectory: TrajectoryRow, places: dict[str, int]) -> tuple[Call, ...]:
    """Return the calls of a row, at their positions in its response."""
    turns = row_turns(
        trajectory.token_ids,
        trajectory.responses,
        trajectory.logprobs,
        agent=trajectory.agent,
        rewards=trajectory.rewards,
    )
    first = trajectory.prompt_length
    return tuple(
        Call(start - first, end - first, turn, span_id, places[span_id])
        for (start, end), turn, span_id in zip(
            trajectory.responses, turns, trajectory.span_ids, strict=True
        )
    )


def _has_sampled_logprobs(trajectory: TrajectoryRow) -> bool:
    certificate = trajectory.certificate
    return certificate.logprobs_present and not certificate.altered_sampling


def _row(
    trajectory: TrajectoryRow,
    versions: dict[str, Versions],
    calls: tuple[Call, ...],
    otherwise: _Otherwise,
) -> Row:
    start = trajectory.prompt_length
    sampled_with = _has_sampled_logprobs(trajectory)
    return Row(
        prompt_ids=trajectory.token_ids[:start],
        response_ids=trajectory.token_ids[start:],
        mask=trajectory.mask[start:],
        logprobs=trajectory.logprobs[start:] if sampled_with else None,
        versions=_span_of(versions.get(span_id) for span_id in trajectory.span_ids),
        turns=len(trajectory.responses),
        calls=calls,
        otherwise=otherwise.of_spans(trajectory.span_ids),
    )


def _split(
    trajectory: TrajectoryRow,
    versions: dict[str, Versions],
    calls: tuple[Call, ...],
    otherwise: _Otherwise,
) -> list[Row]:
    """Return one row per call; all tokens before its response are its prompt."""
    sampled_with = _has_sampled_logprobs(trajectory)
    return [
        Row(
            prompt_ids=trajectory.token_ids[:start],
            response_ids=trajectory.token_ids[start:end],
            mask=[1] * (end - start),
            logprobs=trajectory.logprobs[start:end] if sampled_with else None,
            versions=versions.get(span_id),
            calls=tuple(
                replace(call, start=0, end=end - start) for call in calls[number : number + 1]
            ),
            otherwise=otherwise.of_spans([span_id]),
        )
        for number, ((start, end), span_id) in enumerate(
            zip(trajectory.responses, trajectory.span_ids, strict=True)
        )
    ]


# -- rows of triplets ------------------------------------------------------------------------------


def _from_triplets(
    triplets: Sequence[Triplet],
    versions: dict[Any, Versions],
    altered: Collection[Any],
    otherwise: _Otherwise,
    report: AdapterReport,
) -> Iterable[Row]:
    for triplet in triplets:
        answer = triplet.metadata.get("response_id")
        prompt: list[int] = triplet.prompt.get("token_ids") or []
        response: list[int] = triplet.response.get("token_ids") or []
        if not prompt or not response:
            report.leave_out("row", "no token ids")
            continue
        yield Row(
            prompt_ids=prompt,
            response_ids=response,
            mask=[1] * len(response),
            logprobs=None
            if answer in altered
            else _logprobs(triplet.response.get("logprobs"), len(response)),
            versions=versions.get(answer),
            otherwise=otherwise.of_answer(answer),
        )


def _logprobs(entries: Any, length: int) -> list[float] | None:
    if not isinstance(entries, list) or len(entries) != length:
        return None
    found = [entry.get("logprob") if isinstance(entry, dict) else entry for entry in entries]
    numbers = [float(number) for number in found if isinstance(number, (int, float))]
    return numbers if len(numbers) == length else None


# -- sampling --------------------------------------------------------------------------------------


class _Otherwise:
    """What the calls of an attempt ask for that is not as in training.

    A call has a span of the proxy and often one of the agent's client; both have the id of the
    answer, and only the proxy's has what the proxy added.

    Args:
        spans: Spans of the attempt.
        trained: Sampling parameters of training; None compares nothing.
    """

    def __init__(self, spans: Sequence[Span], trained: Mapping[str, float] | None) -> None:
        self._answers = {span.span_id: span.attributes.get(_RESPONSE) for span in spans}
        self._by_span: dict[str, list[str]] = {}
        self._by_answer: dict[Any, list[str]] = {}
        if trained is None:
            return
        for span in spans:
            found = other_sampling(span.attributes, **trained)
            self._by_span[span.span_id] = found
            self._by_answer.setdefault(self._answers[span.span_id], []).extend(found)

    def of_answer(self, answer: Any) -> tuple[str, ...]:
        """Return what the call with an answer asks for."""
        return () if answer is None else tuple(dict.fromkeys(self._by_answer.get(answer, ())))

    def of_spans(self, span_ids: Iterable[str]) -> tuple[str, ...]:
        """Return what the calls of some spans ask for."""
        found: list[str] = []
        for span_id in span_ids:
            found += self._by_span.get(span_id, ())
            found += self.of_answer(self._answers.get(span_id))
        return tuple(dict.fromkeys(found))


# -- versions of the weights -----------------------------------------------------------------------


def _versions(span: Span) -> Versions:
    first = str(span.attributes.get(semconv.MODEL_VERSION, ""))
    last = str(span.attributes.get(semconv.MODEL_VERSION + ".end", first))
    # Our versions are step numbers; another proxy may use other words.
    return (int(first), int(last)) if first.isdecimal() and last.isdecimal() else None


def _span_of(versions: Iterable[Versions]) -> Versions:
    known = [version for version in versions if version is not None]
    if not known:
        return None
    return min(first for first, _ in known), max(last for _, last in known)


# -- limits ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fit:
    """Rows within the limits, and the number of rows beyond them.

    Attributes:
        rows: Rows to train on.
        prompt_too_long: Number of rows dropped for their prompt.
        response_too_long: Number of rows dropped or truncated for their response.
    """

    rows: list[Row]
    prompt_too_long: int = 0
    response_too_long: int = 0

    @property
    def over(self) -> int:
        """Number of rows beyond a limit."""
        return self.prompt_too_long + self.response_too_long


def fit_rows(rows: Iterable[Row], max_prompt: int, max_response: int, *, cut: bool = False) -> Fit:
    """Keep rows within the limits.

    Args:
        rows: Rows of a rollout.
        max_prompt: Limit of a prompt, in tokens. A prompt is never truncated, because the model
            read all of it.
        max_response: Limit of a response, in tokens.
        cut: Whether a longer response is truncated instead of dropped.
    """
    kept: list[Row] = []
    prompts = responses = 0
    for row in rows:
        if len(row.prompt_ids) > max_prompt:
            prompts += 1
            continue
        if len(row.response_ids) > max_response:
            responses += 1
            if not cut:
                continue
            row = _cut(row, max_response)
        if any(row.mask):
            kept.append(row)
    return Fit(kept, prompts, responses)


def _cut(row: Row, length: int) -> Row:
    return replace(
        row,
        response_ids=row.response_ids[:length],
        mask=row.mask[:length],
        logprobs=None if row.logprobs is None else row.logprobs[:length],
        calls=tuple(
            replace(call, end=min(call.end, length)) for call in row.calls if call.start < length
        ),
    )
