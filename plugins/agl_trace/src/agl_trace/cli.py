"""``agl trace``: shows a rollout's spans as a tree, or sends them to an OpenTelemetry backend."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from agl_core.cli import in_terminal, open_store, print_json, store_options
from agl_core.errors import AttemptNotFoundError, ConfigError, RolloutNotFoundError

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import Attempt, Rollout, Span
    from agl_trace import Style, TraceSummary, TraceView
    from agl_trace.otlp import SendOutcome

__all__ = ["trace"]

_LATEST: Final = "latest"
_SHOWN_IDS: Final = 5
_NARROWEST: Final = 24
_IN_A_FILE: Final = 120  # columns of output that is not a terminal


@click.command(epilog="Example: agl trace latest --path agl.db")
@click.argument("rollout")
@store_options
@click.option(
    "--attempt",
    default=_LATEST,
    show_default=True,
    metavar="ATTEMPT",
    help="Which attempt: its number (1, 2, …), its id, or latest.",
)
@click.option("--depth", type=click.IntRange(min=0), help="Fold deeper levels of the tree.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.option(
    "--otlp",
    metavar="URL",
    help="Send the spans to this OpenTelemetry backend instead of printing them, e.g. "
    "http://127.0.0.1:4318.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header for --otlp, such as an API key; repeatable. OTEL_EXPORTER_OTLP_HEADERS is "
    "used too.",
)
def trace(
    rollout: str,
    backend: str | None,
    path: str | None,
    url: str | None,
    attempt: str,
    depth: int | None,
    as_json: bool,
    otlp: str | None,
    headers: tuple[str, ...],
) -> int:
    """Show what happened in ROLLOUT as a tree of its spans.

    ROLLOUT is an id, a unique part of an id, or latest. Each span has a bar for its time, its
    duration, tokens in + out, its reward and its error.
    """
    if headers and otlp is None:
        raise ConfigError("--header needs --otlp")
    sender = None if otlp is None else _sender(otlp, headers)
    recorded = asyncio.run(_read(open_store(backend, path, url, reading=True), rollout, attempt))
    if sender is None:
        _show(recorded, depth, as_json)
        return 0
    outcome = sender.send(recorded.spans)
    _report(outcome, sender.url, as_json)
    return 1 if outcome.rejected else 0


@dataclass(frozen=True, slots=True)
class _Recorded:
    rollout: Rollout
    attempt: Attempt
    attempts: int
    spans: Sequence[Span]


# -- reading ---------------------------------------------------------------------------------------


async def _read(store: LightningStore, rollout_id: str, attempt_id: str) -> _Recorded:
    try:
        rollout = await _find_rollout(store, rollout_id)
        attempts = (await store.query_attempts(rollout.rollout_id)).items
        attempt = _find_attempt(rollout, attempts, attempt_id)
        spans = await store.query_spans(rollout.rollout_id, attempt.attempt_id)
    finally:
        await store.close()
    return _Recorded(rollout, attempt, len(attempts), spans.items)


async def _find_rollout(store: LightningStore, wanted: str) -> Rollout:
    if wanted == _LATEST:
        page = await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=1)
        if not page.items:
            raise RolloutNotFoundError("the store has no rollout yet")
        return page.items[0]
    exact = await store.get_rollout_by_id(wanted)
    if exact is not None:
        return exact
    page = await store.query_rollouts(
        rollout_id_contains=wanted, sort_by="start_time", sort_order="desc", limit=_SHOWN_IDS
    )
    if not page.items:
        raise RolloutNotFoundError(f"the store has no rollout {wanted!r}")
    if page.total > 1:
        found = ", ".join(one.rollout_id for one in page.items)
        more = f" and {page.total - _SHOWN_IDS} more" if page.total > _SHOWN_IDS else ""
        raise RolloutNotFoundError(f"{wanted!r} is part of {page.total} ids: {found}{more}")
    return page.items[0]


def _find_attempt(rollout: Rollout, attempts: Sequence[Attempt], wanted: str) -> Attempt:
    if not attempts:
        raise AttemptNotFoundError(
            f"rollout {rollout.rollout_id} has no attempt yet: it is {rollout.status}"
        )
    if wanted == _LATEST:
        return attempts[-1]
    for attempt in attempts:
        if wanted in (attempt.attempt_id, str(attempt.sequence_id)):
            return attempt
    known = ", ".join(f"{one.sequence_id} ({one.attempt_id})" for one in attempts[-_SHOWN_IDS:])
    raise AttemptNotFoundError(
        f"rollout {rollout.rollout_id} has no attempt {wanted!r}; it has {known}"
    )


# -- showing ---------------------------------------------------------------------------------------


def _show(recorded: _Recorded, depth: int | None, as_json: bool) -> None:
    from agl_trace import render_trace, view_trace

    view = view_trace(recorded.spans)
    if as_json:
        print_json(_as_json(recorded, view))
        return
    style = _style()
    click.echo("\n".join(_title(recorded, view.summary)), color=style.color)
    if view.rows:
        lines = render_trace(view, style, depth=depth)
        click.echo("\n".join(lines), color=style.color)


def _as_json(recorded: _Recorded, view: TraceView) -> dict[str, Any]:
    summary = asdict(view.summary)
    if view.summary.reward is not None and not math.isfinite(view.summary.reward):
        summary["reward"] = None  # JSON has no NaN and no infinities
    rollout, attempt = recorded.rollout, recorded.attempt
    return {
        "rollout": {
            "rollout_id": rollout.rollout_id,
            "status": rollout.status,
            "mode": rollout.mode,
            "resources_id": rollout.resources_id,
            "input": rollout.input,
        },
        "attempt": {**attempt.model_dump(mode="json"), "attempts": recorded.attempts},
        "summary": summary,
        "spans": [row.as_dict() for row in view.rows],
    }


def _title(recorded: _Recorded, summary: TraceSummary) -> list[str]:
    from agl_trace.render import duration

    rollout, attempt = recorded.rollout, recorded.attempt
    of = f" of {recorded.attempts}" if recorded.attempts > 1 else ""
    facts = [_count(summary.spans, "span")]
    if summary.spans:
        facts.append(duration(summary.seconds))
    if summary.calls:
        facts.append(_count(summary.calls, "model call"))
    if summary.input_tokens or summary.output_tokens:
        facts.append(f"{summary.input_tokens:,} + {summary.output_tokens:,} tokens")
    if summary.reward is not None:
        facts.append(f"reward {summary.reward:.4g}")
    if summary.errors:
        facts.append(_count(summary.errors, "error"))
    mode = f", {rollout.mode}" if rollout.mode else ""
    return [
        f"rollout {rollout.rollout_id}: {rollout.status}{mode}",
        f"attempt {attempt.sequence_id}{of}, {attempt.attempt_id}: {attempt.status}",
        ", ".join(facts),
    ]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _style() -> Style:
    from agl_trace import Style

    terminal = in_terminal()
    columns = shutil.get_terminal_size((_IN_A_FILE, 24)).columns
    try:
        "├━✗…⋯•".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        unicode = False
    else:
        unicode = True
    return Style(
        width=max(columns, _NARROWEST),
        color=terminal and not os.environ.get("NO_COLOR"),
        unicode=unicode,
    )


# -- sending ---------------------------------------------------------------------------------------


def _sender(url: str, headers: Sequence[str]) -> Any:
    from agl_trace.otlp import OtlpSender, headers_from_environment

    found = headers_from_environment()
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", param_hint="--header")
        found[name.strip().lower()] = value
    return OtlpSender(url, found)


def _report(outcome: SendOutcome, url: str, as_json: bool) -> None:
    if as_json:
        print_json({"otlp": {"url": url, **asdict(outcome)}})
        return
    dropped = f"; {outcome.rejected} of them were dropped" if outcome.rejected else ""
    why = f": {outcome.message}" if outcome.message else ""
    click.echo(f"{_count(outcome.sent, 'span')} sent to {url}{dropped}{why}")
