"""The command ``agl promote``."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agl_cli_kit import print_json, print_table
from agl_core.errors import ConfigError

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.trainer import Trainer
    from agl_promote.plan import Plan
    from agl_promote.promotion import Promotion
    from agl_train import TrainPlan

HOPELESS = 0.5
"""A plan that finds a gain of a fifth of the range less often than this is refused."""

file_argument = click.argument("file", type=click.Path(path_type=Path))
name_option = click.option("--name", required=True, help="Name of the promotion.")
json_option = click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
set_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a key of FILE; may be repeated.",
)


@click.group(
    epilog="Example: agl promote plan train.toml --name booking --candidate night/v12 "
    "--champion night/v0 --tasks fresh.jsonl --range 0 1; agl promote run train.toml --name booking"
)
def promote() -> None:
    """Make a prompt or policy live if a paired test on fresh tasks shows that it is better.

    FILE is a train file: its agent runs the tasks, and its store keeps plan, evidence and what is
    live. A rollout with the resources live:NAME receives what is live.
    """


@promote.command(epilog="Example: see agl promote --help")
@file_argument
@name_option
@click.option("--candidate", required=True, metavar="ID", help="Snapshot that may go live.")
@click.option("--champion", metavar="ID", help="Snapshot to beat; by default what is live:NAME.")
@click.option(
    "--tasks",
    "source",
    required=True,
    help="Tasks that no search used, written as a dataset in FILE, relative to the working "
    "directory.",
)
@click.option(
    "--range",
    "reward_range",
    nargs=2,
    type=float,
    required=True,
    metavar="LOW HIGH",
    help="Lowest and highest possible reward; a rollout without one counts as the lowest.",
)
@click.option(
    "--test",
    type=click.Choice(["planned", "anytime"]),
    default="planned",
    show_default=True,
    help="planned: four looks at the list, more power. anytime: may stop after every pair.",
)
@click.option("--alpha", type=float, default=0.05, show_default=True, help="Error of promoting.")
@click.option("--min-gain", type=float, default=0.0, show_default=True, help="Gain to exceed.")
@click.option("--wanted-gain", type=float, help="anytime: give up once this gain is refuted.")
@click.option("--repeats", type=int, default=1, show_default=True, help="Rollouts of a task, each.")
@click.option(
    "--guard",
    "guards",
    multiple=True,
    metavar="PATH:MARGIN",
    help="What must be shown not to get worse by more: input.KEY or reward.NAME; repeatable.",
)
@click.option("--max-pairs", type=click.IntRange(min=4), help="Use so many of the tasks.")
@click.option("--deadline", type=float, help="Seconds for a batch of pairs.")
@click.option("--batch", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of the tasks.")
@click.option("--anyway", is_flag=True, help="Also a plan that can hardly show anything.")
@json_option
@set_option
def plan(
    file: Path,
    name: str,
    candidate: str,
    champion: str | None,
    source: str,
    guards: Sequence[str],
    max_pairs: int | None,
    anyway: bool,
    as_json: bool,
    overrides: Sequence[str],
    **options: Any,
) -> None:
    """Store a plan, before any data. It cannot be changed.

    Prints what the plan can show. Tasks that the search of the candidate used are refused.
    """
    from agl_core.plugins import validate_config
    from agl_core.types import task_digest
    from agl_promote.experiment import segments_of
    from agl_promote.plan import Guardrail, Plan
    from agl_promote.promotion import Promotion
    from agl_train import load_dataset

    tasks = load_dataset(source, Path.cwd(), path="--tasks")
    known = {task_digest(tasks[index]): tasks[index] for index in range(len(tasks))}
    digests = list(known)
    random.Random(options["seed"]).shuffle(digests)
    rails = [Guardrail.of(text) for text in guards]
    with _opened(file, overrides) as (_, trainer):
        store = trainer.store
        beaten, version = asyncio.run(_champion(store, name, champion))
        asyncio.run(_require_snapshots(store, candidate, beaten))
        asyncio.run(_refuse_used(store, digests, candidate, beaten))
        made = validate_config(
            Plan,
            {
                **options,
                "name": name,
                "candidate": candidate,
                "champion": beaten,
                "champion_version": version,
                "source": source,
                "tasks": digests[:max_pairs],
                "guardrails": rails,
                "segments": segments_of((known[one] for one in digests[:max_pairs]), rails),
            },
        )
        powers = asyncio.run(_powers(store, made))
        best = max(powers.values())
        if best < HOPELESS and not anyway:
            raise ConfigError(
                f"even a gain of {max(powers):g} of the range would be shown in only {best:.0%} of "
                "cases; take more tasks or repeats, or give --anyway"
            )
        asyncio.run(Promotion.create(store, made))
    rollouts = 2 * made.repeats * len(made.tasks)
    if as_json:
        power = [{"gain": gain, "power": value} for gain, value in powers.items()]
        print_json({"plan": made.model_dump(mode="json"), "power": power, "rollouts": rollouts})
        return
    rows = [
        ["candidate", made.candidate],
        ["champion", made.champion],
        ["pairs", f"at most {len(made.tasks)}, {rollouts} rollouts"],
        *([f"shows +{gain * made.width:g}", f"in {value:.0%}"] for gain, value in powers.items()),
    ]
    print_table(["", ""], rows)
    click.echo(f"run it: agl promote run {file} --name {name}")


@promote.command()
@file_argument
@name_option
@click.option("--tasks", "source", help="The tasks, if they are elsewhere now.")
@click.option("--check", is_flag=True, help="Exit with 1 unless the candidate is promoted.")
@json_option
@set_option
def run(
    file: Path,
    name: str,
    source: str | None,
    check: bool,
    as_json: bool,
    overrides: Sequence[str],
) -> int:
    """Run a plan until there is a decision; an interrupted one is resumed.

    Exits with 0 whatever the decision is, unless --check is given.
    """
    from agl_promote.experiment import Experiment, run_name
    from agl_promote.promotion import Promotion
    from agl_train import INTERRUPTED, load_dataset, set_up_logging, stopped_by_signals

    with _opened(file, overrides) as (train_plan, trainer):
        set_up_logging(train_plan)
        promotion = asyncio.run(Promotion.open(trainer.store, name))
        tasks = load_dataset(source or promotion.plan.source, Path.cwd(), path="--tasks")
        experiment = Experiment(promotion)
        trainer.algorithm, trainer.run = experiment, run_name(promotion.plan)
        with stopped_by_signals():
            trainer.fit(train_plan.agent, tasks)
        promotion = asyncio.run(Promotion.open(trainer.store, name))
        shown = asyncio.run(_facts(trainer.store, promotion))
    _print_facts(shown, as_json)
    if trainer.interrupted:
        click.echo(f"resume it: agl promote run {file} --name {name}", err=as_json)
        return INTERRUPTED
    return int(check and shown["decision"] != "promote")


@promote.command()
@file_argument
@name_option
@json_option
@set_option
def show(file: Path, name: str, as_json: bool, overrides: Sequence[str]) -> None:
    """Show a promotion: its decision, what is shown, and what is live."""
    from agl_promote.promotion import Promotion

    with _opened(file, overrides) as (_, trainer):
        promotion = asyncio.run(Promotion.open(trainer.store, name))
        shown = asyncio.run(_facts(trainer.store, promotion))
    _print_facts(shown, as_json)


@promote.command()
@file_argument
@name_option
@click.option("--why", default="by hand", show_default=True, help="Reason, for the history.")
@set_option
def rollback(file: Path, name: str, why: str, overrides: Sequence[str]) -> None:
    """Make live again what was live before."""
    from agl_promote.pointer import LivePointer

    async def back(store: LightningStore) -> LivePointer:
        return await (await LivePointer.read(store, name)).roll_back(store, f"rolled back: {why}")

    with _opened(file, overrides) as (_, trainer):
        live = asyncio.run(back(trainer.store))
    click.echo(f"live:{name} is {live.resources_id} again")


@contextmanager
def _opened(file: Path, overrides: Sequence[str]) -> Iterator[tuple[TrainPlan, Trainer]]:
    """Yield a train file and its trainer; close the store."""
    from agl_train import blame, read_train_file

    with blame(file):
        train_plan = read_train_file(file, overrides)
        trainer = train_plan.build_trainer(with_algorithm=False)
    try:
        yield train_plan, trainer
    finally:
        asyncio.run(trainer.store.close())


async def _champion(store: LightningStore, name: str, champion: str | None) -> tuple[str, int]:
    from agl_promote.pointer import LivePointer

    live = await LivePointer.read(store, name)
    if live.resources_id is None:
        if champion is None:
            raise ConfigError(
                f"nothing is live:{name} yet; name the snapshot to beat", path="--champion"
            )
        return champion, 0
    if champion not in (None, live.resources_id):
        raise ConfigError(
            f"live:{name} is {live.resources_id}, which the candidate has to beat, not {champion}",
            path="--champion",
        )
    return live.resources_id, live.version


async def _require_snapshots(store: LightningStore, *resources_ids: str) -> None:
    for resources_id in resources_ids:
        if await store.get_resources_by_id(resources_id) is None:
            raise ConfigError(f"the store has no resources {resources_id!r}")


async def _refuse_used(store: LightningStore, digests: Sequence[str], *resources_ids: str) -> None:
    from agl_promote.experiment import used_tasks

    used = len((await used_tasks(store, *resources_ids)).intersection(digests))
    if used:
        raise ConfigError(
            f"{used} of the {len(digests)} tasks were used by the search that made the candidate "
            "or the champion; only fresh tasks are evidence",
            path="--tasks",
        )


async def _powers(store: LightningStore, plan: Plan) -> dict[float, float]:
    from agl_promote.experiment import known_rewards
    from agl_promote.power import GAINS, power_of

    known = await known_rewards(store, plan)
    return {gain: power_of(plan, known, gain) for gain in GAINS}


async def _facts(store: LightningStore, promotion: Promotion) -> dict[str, Any]:
    from agl_promote.pointer import LivePointer

    plan, decision = promotion.plan, promotion.decision
    live = await LivePointer.read(store, plan.name)
    return {
        "name": plan.name,
        "candidate": plan.candidate,
        "champion": plan.champion,
        "decision": "undecided" if decision is None else decision.kind,
        "why": "" if decision is None else decision.why,
        "at_least": None if decision is None else decision.at_least,
        "gain": None if decision is None else decision.gain,
        "pairs": promotion.pairs if decision is None else decision.pairs,
        "of": len(plan.tasks),
        "guardrails": {} if decision is None else dict(decision.guardrails),
        "live": live.resources_id,
        "history": live.history,
    }


def _print_facts(shown: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(shown)
        return
    rows = [
        ["promotion", shown["name"]],
        ["decision", f"{shown['decision']}: {shown['why']}".rstrip(": ")],
        ["pairs", f"{shown['pairs']} of at most {shown['of']}"],
    ]
    if shown["gain"] is not None:
        rows.append(["gain", f"{shown['gain']:+.3f}, shown to be above {shown['at_least']:+.3f}"])
    rows += [[f"  {key}", f"above {low:+.3f}"] for key, low in shown["guardrails"].items()]
    rows.append([f"live:{shown['name']}", shown["live"] or "nothing"])
    print_table(["", ""], rows)
