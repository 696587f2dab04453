"""``agl export``: rollouts as datasets for SFT, DPO and reinforcement learning."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click

from agl_core.cli import open_store, print_json, store_options
from agl_core.errors import ConfigError
from agl_core.types import FINISHED_STATUSES, RolloutMode

if TYPE_CHECKING:
    from agl_export import ExportReport, Split
    from agl_export.run import Builder

__all__ = ["export"]

F = TypeVar("F", bound=Callable[..., Any])
_ANY: Final = "any"
_ENDINGS: Final = sorted(FINISHED_STATUSES)


def _check_regex(_context: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    try:
        re.compile(value or "")
    except re.error as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from error
    return value


def _common(command: F) -> F:
    """Add the argument FILE and the options that every dataset has."""
    options = [
        click.argument("file", type=click.Path(path_type=Path, dir_okay=False)),
        store_options,
        click.option("--run", help="Take the rollouts of this run only."),
        click.option(
            "--status",
            "statuses",
            type=click.Choice([*_ENDINGS, _ANY]),
            multiple=True,
            default=("succeeded",),
            show_default=True,
            help="Take rollouts that ended so; repeatable.",
        ),
        click.option(
            "--mode",
            "modes",
            type=click.Choice(get_args(RolloutMode)),
            multiple=True,
            help="Take rollouts that were for this; repeatable.  [default: all]",
        ),
        click.option("--resources", metavar="ID", help="Take rollouts that ran with these only."),
        click.option(
            "--agent",
            metavar="REGEX",
            callback=_check_regex,
            help="Take the calls of agents whose name matches.",
        ),
        click.option(
            "--valid",
            type=click.FloatRange(0, 1),
            default=0.0,
            metavar="SHARE",
            help="Keep this share of the tasks apart, in a second file NAME.valid.jsonl.",
        ),
        click.option("--seed", default=0, show_default=True, help="Keep others apart."),
        click.option("--bare", is_flag=True, help="Leave out reward, task and ids of each row."),
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _min_reward(what: str) -> Callable[[F], F]:
    return click.option("--min-reward", type=float, help=f"Leave out {what} with a smaller reward.")


_FORM_OF_MESSAGES: Final = click.option(
    "--form",
    type=click.Choice(["messages", "tokens"]),
    default="messages",
    show_default=True,
    help="Chat messages, or the very token ids that the model saw and sampled.",
)
_TOOL_ARGUMENTS: Final = click.option(
    "--tool-arguments",
    type=click.Choice(["object", "text"]),
    default="object",
    show_default=True,
    help="Arguments of tool calls as objects, as chat templates take them, or as the JSON text "
    "that OpenAI's API speaks. Parquet has text.",
)


@click.group(epilog="Example: agl export sft best.jsonl --path agl.db --best 1")
def export() -> None:
    """Make datasets for fine-tuning of what rollouts recorded.

    FILE ends in .jsonl, or in .parquet if pyarrow is installed. Every rollout that is left out is
    counted with its reason.
    """


@export.command(epilog="Example: agl export sft best.jsonl --path agl.db --best 1 --min-reward 0.5")
@_common
@_FORM_OF_MESSAGES
@click.option("--best", type=click.IntRange(min=1), help="Take so many rollouts of a task at most.")
@_min_reward("rollouts")
@click.option("--keep-duplicates", is_flag=True, help="Keep what says the same twice in a task.")
@_TOOL_ARGUMENTS
def sft(
    form: Any,
    best: int | None,
    min_reward: float | None,
    keep_duplicates: bool,
    tool_arguments: Any,
    agent: str | None,
    **common: Any,
) -> None:
    """Write the best rollouts of each task, to imitate them.

    A row has messages and tools, or input_ids and labels (-100 where the model did not sample).
    """
    from agl_export import SftOptions, sft_rows

    options = SftOptions(form, best, min_reward, agent, keep_duplicates, tool_arguments)
    _export(lambda samples, report: sft_rows(samples, options, report), **common)


@export.command(epilog="Example: agl export dpo pairs.jsonl --path agl.db --margin 0.5")
@_common
@_FORM_OF_MESSAGES
@click.option(
    "--pairs",
    type=click.Choice(["best-worst", "all"]),
    default="best-worst",
    show_default=True,
    help="One pair per task, or any two rollouts of it.",
)
@click.option(
    "--margin",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Least difference of two rewards; equal ones never make a pair.",
)
@click.option("--max-pairs", type=click.IntRange(min=1), help="Pairs per task, with --pairs all.")
@click.option(
    "--completion",
    type=click.Choice(["turn", "rest"]),
    default="turn",
    show_default=True,
    help="The answer at which the two part, or all that follows.",
)
@_min_reward("pairs whose better one has")
@_TOOL_ARGUMENTS
def dpo(
    form: Any,
    pairs: Any,
    margin: float,
    max_pairs: int | None,
    completion: Any,
    min_reward: float | None,
    tool_arguments: Any,
    agent: str | None,
    **common: Any,
) -> None:
    """Write pairs of rollouts of one task, the better one to be preferred.

    A row has prompt, chosen and rejected, as messages or as token ids.
    """
    from agl_export import DpoOptions, dpo_rows

    if max_pairs is not None and pairs != "all":
        raise ConfigError("--max-pairs goes with --pairs all")
    options = DpoOptions(
        form, pairs, margin, max_pairs, completion, min_reward, agent, tool_arguments
    )
    _export(lambda samples, report: dpo_rows(samples, options, report), **common)


@export.command(epilog="Example: agl export rl rows.parquet --path agl.db --require-logprobs")
@_common
@click.option(
    "--form",
    type=click.Choice(["trajectory", "triplets"]),
    default="trajectory",
    show_default=True,
    help="A row per sequence of calls that continue each other, or per call.",
)
@_min_reward("rollouts")
@click.option("--require-logprobs", is_flag=True, help="Leave out rollouts that lack some.")
@click.option(
    "--require-ids", is_flag=True, help="Leave out rollouts with an answer without token ids."
)
def rl(
    form: Any,
    min_reward: float | None,
    require_logprobs: bool,
    require_ids: bool,
    agent: str | None,
    **common: Any,
) -> None:
    """Write token ids, masks, log-probabilities and rewards.

    Rows of one task form a group; nothing is normalised.
    """
    from agl_export import RlOptions, rl_rows

    options = RlOptions(form, min_reward, agent, require_logprobs, require_ids)
    _export(lambda samples, report: rl_rows(samples, options, report), **common)


def _export(
    build: Builder,
    *,
    file: Path,
    backend: str | None,
    path: str | None,
    url: str | None,
    run: str | None,
    statuses: tuple[Any, ...],
    modes: tuple[Any, ...],
    resources: str | None,
    valid: float,
    seed: int,
    bare: bool,
    as_json: bool,
) -> None:
    from agl_export import Selection, Split, export_dataset
    from agl_export.files import check_format

    check_format(file)
    selection = Selection(run, None if _ANY in statuses else statuses, modes or None, resources)
    split = Split(valid, seed)
    store = open_store(backend, path, url, reading=True)

    async def work() -> ExportReport:
        try:
            return await export_dataset(
                store, build, file, selection=selection, split=split, bare=bare
            )
        finally:
            await store.close()

    _report(asyncio.run(work()), file, split, as_json)


def _report(report: ExportReport, file: Path, split: Split, as_json: bool) -> None:
    written = {side: str(path) for side, path in split.files(file).items() if report.rows.get(side)}
    if as_json:
        print_json({**report.as_dict(), "files": written})
    else:
        click.echo(str(report))
        for side, path in written.items():
            click.echo(f"{path}: {report.rows[side]} rows")
    if not written:
        raise click.ClickException(f"there is nothing to export; {file} was not written")
