"""``agl export``: rollouts as datasets for SFT, DPO, reinforcement learning, and as ATIF."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click

from agl_cli_kit import open_store, print_json, store_options
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
        raise click.BadParameter(f"{value!r} is not a regular expression: {error}") from error
    return value


def _common(command: F) -> F:
    """Add the argument FILE and the options of all datasets."""
    options = [
        click.argument("file", type=click.Path(path_type=Path, dir_okay=False)),
        store_options,
        click.option("--run", help="Take only rollouts of this run."),
        click.option(
            "--status",
            "statuses",
            type=click.Choice([*_ENDINGS, _ANY]),
            multiple=True,
            default=("succeeded",),
            show_default=True,
            help="Take rollouts that ended with this status; repeatable.",
        ),
        click.option(
            "--mode",
            "modes",
            type=click.Choice(get_args(RolloutMode)),
            multiple=True,
            help="Take rollouts of this mode; repeatable.  [default: all]",
        ),
        click.option(
            "--resources",
            metavar="ID",
            help="Take only rollouts that ran with this snapshot of resources.",
        ),
        click.option(
            "--agent",
            metavar="REGEX",
            callback=_check_regex,
            help="Take only calls of agents whose name matches.",
        ),
        click.option(
            "--valid",
            type=click.FloatRange(0, 1),
            default=0.0,
            metavar="SHARE",
            help="Share of tasks that go to a validation file, NAME.valid.jsonl.",
        ),
        click.option(
            "--seed", default=0, show_default=True, help="Selects which tasks are for validation."
        ),
        click.option("--bare", is_flag=True, help="Leave out reward, task and ids of each row."),
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _min_reward(what: str) -> Callable[[F], F]:
    return click.option("--min-reward", type=float, help=f"Leave out {what} a reward below this.")


_KEEP_AUXILIARY: Final = click.option(
    "--keep-auxiliary",
    is_flag=True,
    help="Take auxiliary calls too: titles, topic checks, calls that were made again.",
)
_FORM_OF_MESSAGES: Final = click.option(
    "--form",
    type=click.Choice(["messages", "tokens"]),
    default="messages",
    show_default=True,
    help="Chat messages, or the token ids that the model saw and sampled.",
)
_TOOL_ARGUMENTS: Final = click.option(
    "--tool-arguments",
    type=click.Choice(["object", "text"]),
    default="object",
    show_default=True,
    help="Arguments of tool calls as objects, for chat templates, or as JSON text, as in "
    "OpenAI's API. Parquet always has text.",
)


@click.group(epilog="Example: agl export sft best.jsonl --path agl.db --best 1")
def export() -> None:
    """Export recorded rollouts as datasets for fine-tuning.

    FILE ends in .jsonl, or in .parquet if pyarrow is installed. The report counts every rollout
    that is left out, with the reason.
    """


@export.command(epilog="Example: agl export sft best.jsonl --path agl.db --best 1 --min-reward 0.5")
@_common
@_FORM_OF_MESSAGES
@click.option("--best", type=click.IntRange(min=1), help="Most rollouts per task.")
@_min_reward("rollouts with")
@click.option("--keep-duplicates", is_flag=True, help="Keep rollouts with equal content.")
@_TOOL_ARGUMENTS
@_KEEP_AUXILIARY
def sft(
    form: Any,
    best: int | None,
    min_reward: float | None,
    keep_duplicates: bool,
    tool_arguments: Any,
    agent: str | None,
    keep_auxiliary: bool,
    **common: Any,
) -> None:
    """Write the best rollouts of each task, for supervised fine-tuning.

    A row has messages and tools, or input_ids and labels. Tokens that the model did not sample have
    the label -100.
    """
    from agl_export import SftOptions, sft_rows

    options = SftOptions(
        form, best, min_reward, agent, keep_duplicates, tool_arguments, keep_auxiliary
    )
    _export(lambda samples, report: sft_rows(samples, options, report), **common)


@export.command(epilog="Example: agl export dpo pairs.jsonl --path agl.db --margin 0.5")
@_common
@_FORM_OF_MESSAGES
@click.option(
    "--pairs",
    type=click.Choice(["best-worst", "all"]),
    default="best-worst",
    show_default=True,
    help="One pair per task, or all pairs of its rollouts.",
)
@click.option(
    "--margin",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Smallest difference of rewards in a pair; equal rewards never make one.",
)
@click.option("--max-pairs", type=click.IntRange(min=1), help="Pairs per task, with --pairs all.")
@click.option(
    "--completion",
    type=click.Choice(["turn", "rest"]),
    default="turn",
    show_default=True,
    help="The first turn in which the two differ, or all turns from there on.",
)
@_min_reward("pairs whose chosen rollout has")
@_TOOL_ARGUMENTS
@_KEEP_AUXILIARY
def dpo(
    form: Any,
    pairs: Any,
    margin: float,
    max_pairs: int | None,
    completion: Any,
    min_reward: float | None,
    tool_arguments: Any,
    agent: str | None,
    keep_auxiliary: bool,
    **common: Any,
) -> None:
    """Write pairs of rollouts of one task, for preference optimisation.

    The rollout with the larger reward is the chosen one. A row has prompt, chosen and rejected, as
    messages or as token ids.
    """
    from agl_export import DpoOptions, dpo_rows

    if max_pairs is not None and pairs != "all":
        raise ConfigError("--max-pairs needs --pairs all")
    options = DpoOptions(
        form,
        pairs,
        margin,
        max_pairs,
        completion,
        min_reward,
        agent,
        tool_arguments,
        keep_auxiliary,
    )
    _export(lambda samples, report: dpo_rows(samples, options, report), **common)


@export.command(epilog="Example: agl export rl rows.parquet --path agl.db --require-logprobs")
@_common
@click.option(
    "--form",
    type=click.Choice(["trajectory", "triplets"]),
    default="trajectory",
    show_default=True,
    help="One row per sequence of calls that extend each other, or per call.",
)
@_min_reward("rollouts with")
@click.option(
    "--require-logprobs",
    is_flag=True,
    help="Leave out rollouts with a sampled token without logprob.",
)
@click.option(
    "--require-ids", is_flag=True, help="Leave out rollouts with a response without token ids."
)
@_KEEP_AUXILIARY
def rl(
    form: Any,
    min_reward: float | None,
    require_logprobs: bool,
    require_ids: bool,
    agent: str | None,
    keep_auxiliary: bool,
    **common: Any,
) -> None:
    """Write token ids, masks, log-probabilities and rewards.

    Rows of one task form a group. Rewards are not normalised.
    """
    from agl_export import RlOptions, rl_rows

    options = RlOptions(form, min_reward, agent, require_logprobs, require_ids, keep_auxiliary)
    _export(lambda samples, report: rl_rows(samples, options, report), **common)


@export.command(epilog="Example: agl export atif trajectories.jsonl --path agl.db")
@_common
def atif(file: Path, agent: str | None, bare: bool, **common: Any) -> None:
    """Write rollouts in ATIF, Harbor's format of agents' trajectories.

    A line is one document: a conversation with its sub-agents. Each sampled token is in one
    document; auxiliary calls are marked there. --bare leaves out reward, task and ids.
    """
    from agl_export import AtifOptions, atif_rows

    if file.suffix != ".jsonl":
        raise ConfigError(f"{file}: ATIF is JSON; the name must end in .jsonl")
    options = AtifOptions(agent, bare)
    _export(
        lambda samples, report: atif_rows(samples, options, report),
        file=file,
        bare=False,  # the documents have no columns of ours
        **common,
    )


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
