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

from agl_cli_kit import in_terminal, open_store, print_json, store_options
from agl_core.errors import ConfigError, InvalidArgumentError
from agl_trace.selection import LATEST, find_attempt, find_rollout

if TYPE_CHECKING:
    from agl_adapters import TraceToMessages
    from agl_core.adapter import AdapterReport
    from agl_core.store import LightningStore
    from agl_core.types import Attempt, OpenAIMessages, Rollout, Span
    from agl_trace import Style, TraceSummary, TraceView
    from agl_trace.otlp import SendOutcome

__all__ = ["trace"]

_NARROWEST: Final = 24
"""Columns: below, the tree of spans would have no room for a name."""
_ENDED_BY_THE_STORE: Final = {
    "timeout": "it took longer than the rollout's timeout_seconds",
    "unresponsive": "its runner sent no heartbeat for the rollout's unresponsive_seconds",
}
_IN_A_FILE: Final = 120  # columns of output that is not a terminal


@click.command(epilog="Example: agl trace latest --path agl.db")
@click.argument("rollout")
@store_options
@click.option(
    "--attempt",
    default=LATEST,
    show_default=True,
    metavar="ATTEMPT",
    help="Which attempt: its number (1, 2, …), its id, or latest.",
)
@click.option("--depth", type=click.IntRange(min=0), help="Fold deeper levels of the tree.")
@click.option(
    "--forks", is_flag=True, help="Show the tree of the rollouts that are forks of each other."
)
@click.option(
    "--chat", is_flag=True, help="Show what the model was told and said instead of the tree."
)
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
    forks: bool,
    chat: bool,
    as_json: bool,
    otlp: str | None,
    headers: tuple[str, ...],
) -> int:
    """Show what happened in ROLLOUT as a tree of its spans.

    ROLLOUT is an id, a unique part of an id, or latest: the one that began last. Each span has a
    bar for its time, its duration, tokens in + out, its reward and its error.
    """
    if headers and otlp is None:
        raise ConfigError("--header needs --otlp")
    views = {"--forks": forks, "--chat": chat, "--otlp": otlp is not None}
    if len(chosen := [name for name, given in views.items() if given]) > 1:
        raise ConfigError(f"{' and '.join(chosen)} exclude each other")
    if forks:
        return _show_forks(open_store(backend, path, url, reading=True), rollout, as_json)
    sender = None if otlp is None else _sender(otlp, headers)
    recorded = asyncio.run(_read(open_store(backend, path, url, reading=True), rollout, attempt))
    if chat:
        _show_chat(recorded, as_json)
        return 0
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
        rollout = await find_rollout(store, rollout_id)
        attempts = (await store.query_attempts(rollout.rollout_id)).items
        attempt = find_attempt(rollout, attempts, attempt_id)
        spans = await store.query_spans(rollout.rollout_id, attempt.attempt_id)
    finally:
        await store.close()
    return _Recorded(rollout, attempt, len(attempts), spans.items)


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


def _show_chat(recorded: _Recorded, as_json: bool) -> None:
    from agl_adapters import TraceToMessages
    from agl_core.adapter import Reason
    from agl_trace import view_trace
    from agl_trace.chat import render_chat
    from agl_trace.render import clean_text

    conversations, report = _conversations(TraceToMessages(keep_auxiliary=True), recorded.spans)
    if as_json:
        ids = {"rollout_id": recorded.rollout.rollout_id, "attempt_id": recorded.attempt.attempt_id}
        print_json({**ids, "conversations": conversations, "report": report.as_dict()})
        return
    style = _style()
    click.echo("\n".join(_title(recorded, view_trace(recorded.spans).summary)), color=style.color)
    for line in render_chat(conversations, style):
        click.echo(line, color=style.color)
    if not conversations:
        click.echo("no model call with messages was recorded")
    # Where tracer and proxy both record, each call is there twice; that is not worth a line.
    report.left_out.pop(("call", str(Reason.DUPLICATE_RESPONSE)), None)
    for line in str(report).splitlines()[1:]:
        click.echo(clean_text(line, style))


def _conversations(
    adapter: TraceToMessages, spans: Sequence[Span]
) -> tuple[list[OpenAIMessages], AdapterReport]:
    """Adapt spans, without the calls that the adapter refuses; the report says why."""
    try:
        return adapter.adapt_with_report(spans)
    except InvalidArgumentError:
        refused: list[str] = []
        kept: list[Span] = []
        for span in spans:
            try:
                adapter.adapt_with_report([span])
            except InvalidArgumentError as error:
                refused.append(str(error))
            else:
                kept.append(span)
        if not refused:  # the error is one of several spans together
            raise
    conversations, report = adapter.adapt_with_report(kept)
    report.spans = len(spans)
    for error in refused:
        report.leave_out("call", error)
    return conversations, report


def _show_forks(store: LightningStore, wanted: str, as_json: bool) -> int:
    from agl_trace.forks import ForkTree, read_forks, render_forks

    async def read() -> ForkTree:
        try:
            return await read_forks(store, await find_rollout(store, wanted))
        finally:
            await store.close()

    tree = asyncio.run(read())
    if as_json:
        print_json(tree.as_dict())
    else:
        click.echo("\n".join(render_forks(tree, unicode=_style().unicode)))
    return 0


def _as_json(recorded: _Recorded, view: TraceView) -> dict[str, Any]:
    summary = asdict(view.summary)
    if view.summary.reward is not None and not math.isfinite(view.summary.reward):
        summary["reward"] = None  # JSON has no NaN and no infinities
    rollout, attempt = recorded.rollout, recorded.attempt
    replay = rollout.config.replay
    return {
        "rollout": {
            "rollout_id": rollout.rollout_id,
            "status": rollout.status,
            "mode": rollout.mode,
            "resources_id": rollout.resources_id,
            "input": rollout.input,
            "replay": replay and replay.model_dump(),
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
        beside = f" ({summary.auxiliary} auxiliary)" if summary.auxiliary else ""
        facts.append(_count(summary.calls, "model call") + beside)
    if summary.input_tokens or summary.output_tokens:
        facts.append(f"{summary.input_tokens:,} + {summary.output_tokens:,} tokens")
    if summary.reward is not None:
        facts.append(f"reward {summary.reward:.4g}")
    if summary.errors:
        facts.append(_count(summary.errors, "error"))
    mode = f", {rollout.mode}" if rollout.mode else ""
    replay = rollout.config.replay
    origin: list[str] = []
    if replay is not None:
        what = "fork" if replay.then == "live" else "replay"
        until = "" if replay.until is None else f" after call {replay.until}"
        origin = [f"{what} of {replay.rollout_id}{until}"]
    return [
        f"rollout {rollout.rollout_id}: {rollout.status}{mode}",
        *origin,
        f"attempt {attempt.sequence_id}{of}, {attempt.attempt_id}: {attempt.status}",
        *_error(attempt),
        ", ".join(facts),
    ]


def _error(attempt: Attempt) -> list[str]:
    """Return why an attempt failed, as one line, if it did."""
    told = " ".join(str((attempt.metadata or {}).get("error") or "").split())
    if not told and attempt.status in _ENDED_BY_THE_STORE:
        told = _ENDED_BY_THE_STORE[attempt.status]
    if not told:
        return []
    from agl_trace.render import clean_text

    style = _style()
    line = clean_text(f"error: {told}", style)
    return [click.style(line, fg="red") if style.color else line]


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
