"""The command ``agl promote plan``."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from agl_cli_kit import print_json, print_table
from agl_core.errors import ConfigError
from agl_promote.options import file_argument, json_option, name_option, opened, set_option
from agl_train import price_option

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_promote.plan import Guardrail, LivePlan, Plan

HOPELESS: Final = 0.5
"""A plan that finds a gain of a fifth of the range less often than this is refused."""

_OF_TASKS: Final = ("test", "repeats", "max_pairs", "max_cost", "price", "batch", "seed")
_OF_TRAFFIC: Final = ("share", "max_episodes", "holdback", "watch")


@click.command(
    epilog="Example: agl promote plan train.toml --name booking --candidate night/v12 "
    "--champion night/v0 --tasks fresh.jsonl --range 0 1"
)
@file_argument
@name_option
@click.option("--candidate", required=True, metavar="ID", help="Snapshot that may go live.")
@click.option("--champion", metavar="ID", help="Snapshot to beat; by default what is live:NAME.")
@click.option(
    "--tasks",
    "source",
    help="Tasks that no search used, written as a dataset in FILE, relative to the working "
    "directory.",
)
@click.option(
    "--live", is_flag=True, help="Instead of tasks: live traffic, that is rollouts of live:NAME."
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
    help="planned (default): four looks at the list, more power. anytime: may stop after every "
    "pair.",
)
@click.option("--alpha", type=float, default=0.05, show_default=True, help="Error of promoting.")
@click.option("--min-gain", type=float, default=0.0, show_default=True, help="Gain to exceed.")
@click.option("--wanted-gain", type=float, help="Anytime, live: give up once this gain is refuted.")
@click.option("--repeats", type=int, help="Rollouts of a task, each. By default 1.")
@click.option(
    "--guard",
    "guards",
    multiple=True,
    metavar="PATH:MARGIN",
    help="What must be shown not to get worse by more: input.KEY (with --live input.KEY=VALUE) or "
    "reward.NAME; repeatable.",
)
@click.option("--max-pairs", type=click.IntRange(min=4), help="Use so many of the tasks.")
@click.option(
    "--max-cost", type=float, help="No more rollouts once they have cost so much; needs --price."
)
@price_option
@click.option(
    "--deadline", type=float, help="Seconds for a batch of pairs; with --live for an episode."
)
@click.option("--batch", type=click.IntRange(min=1), help="Pairs at a time. By default 16.")
@click.option("--seed", type=int, help="Of the order of the tasks.")
@click.option("--share", type=float, help="Live: part of the episodes for the candidate; 0.5.")
@click.option("--max-episodes", type=int, help="Live: episodes of the trial; 2000.")
@click.option("--holdback", type=float, help="Live: part that stays on the old version; 0.1.")
@click.option("--watch", type=int, help="Live: episodes to watch after a promotion; 2000.")
@click.option("--anyway", is_flag=True, help="Also a plan that can hardly show anything.")
@json_option
@set_option
def plan(
    file: Path,
    name: str,
    champion: str | None,
    source: str | None,
    live: bool,
    guards: Sequence[str],
    anyway: bool,
    as_json: bool,
    overrides: Sequence[str],
    **options: Any,
) -> None:
    """Store a plan, before any data. It cannot be changed.

    Prints what the plan can show. Tasks that the search of the candidate used are refused, and so
    is the next plan of a name until the promotion before it is over.
    """
    from agl_promote.plan import Guardrail
    from agl_promote.promotion import Promotion

    _check_options(source, live, options)
    rails = [Guardrail.of(text) for text in guards]
    given = {key: value for key, value in options.items() if value is not None}
    given |= {"name": name, "guardrails": rails}
    tasks = None if source is None else _tasks(source, rails, given)
    with opened(file, overrides) as (_, trainer):
        store = trainer.store
        made = asyncio.run(_made(store, {**given, **(tasks or {})}, champion))
        facts = asyncio.run(_foreseen(store, made))
        best = max(facts.power.values())
        if best < HOPELESS and not anyway:
            raise ConfigError(
                f"even a gain of {max(facts.power):g} of the range would be shown in only "
                f"{best:.0%} of cases; take more tasks, repeats or episodes, or give --anyway"
            )
        made = asyncio.run(Promotion.create(store, made)).plan
    if as_json:
        print_json({"plan": made.model_dump(mode="json"), **facts.as_json()})
        return
    print_table(["", ""], facts.rows(made))
    verb = "serve" if live else "run"
    click.echo(f"{verb} it: agl promote {verb} {file} --name {name}")


def _check_options(source: str | None, live: bool, options: dict[str, Any]) -> None:
    if (source is not None) == live:
        raise click.UsageError("give either --tasks or --live")
    if live and options["deadline"] is None:
        raise click.UsageError("--live needs --deadline, after which an episode has no reward")
    for option in _OF_TASKS if live else _OF_TRAFFIC:
        if options[option] is not None:
            wanted = "--tasks" if live else "--live"
            raise click.UsageError(f"--{option.replace('_', '-')} needs {wanted}")
    # Here and not in the plan: one that was stored with both can still be opened.
    if options["wanted_gain"] is not None and not live and options["test"] != "anytime":
        raise click.UsageError("--wanted-gain needs --test anytime or --live")


def _tasks(source: str, rails: Sequence[Guardrail], given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan that are about its tasks."""
    from agl_core.types import task_digest
    from agl_promote.rewards import segments_of
    from agl_train import load_dataset

    tasks = load_dataset(source, Path.cwd(), path="--tasks")
    known = {task_digest(tasks[index]): tasks[index] for index in range(len(tasks))}
    digests = list(known)
    random.Random(given.get("seed", 0)).shuffle(digests)
    digests = digests[: given.pop("max_pairs", None)]
    segments = segments_of((known[digest] for digest in digests), rails)
    return {"source": source, "tasks": digests, "segments": segments}


async def _made(
    store: LightningStore, fields: dict[str, Any], champion: str | None
) -> Plan | LivePlan:
    """Make a plan against what is live.

    Raises:
        ConfigError: A snapshot is missing, the champion is not what is live, a field is not valid,
            or a search used the tasks.
    """
    from agl_core.plugins import validate_config
    from agl_promote.known import used_tasks
    from agl_promote.plan import LivePlan, Plan

    beaten, version = await _champion(store, fields["name"], champion)
    for resources_id in (fields["candidate"], beaten):
        if await store.get_resources_by_id(resources_id) is None:
            raise ConfigError(f"the store has no resources {resources_id!r}")
    if digests := fields.get("tasks"):
        used = len((await used_tasks(store, fields["candidate"], beaten)).intersection(digests))
        if used:
            raise ConfigError(
                f"{used} of the {len(digests)} tasks were used by the search that made the "
                "candidate or the champion; only fresh tasks are evidence",
                path="--tasks",
            )
    model = Plan if "tasks" in fields else LivePlan
    return validate_config(model, {**fields, "champion": beaten, "champion_version": version})


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
    if live.trial is not None:
        raise ConfigError(f"a trial of live:{name} is on; end it first, with serve or rollback")
    return live.resources_id, live.version


class _Foreseen(NamedTuple):
    """Power and price of a plan.

    Attributes:
        power: Probability of a promotion by true gain, as a share of the range.
        rollouts: Most rollouts.
        cost: What they will cost; None if that is unknown.
        uses: Of each earlier promotion, how many of the tasks were in its plan.
    """

    power: dict[float, float]
    rollouts: int
    cost: float | None
    uses: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        power = [{"gain": gain, "power": value} for gain, value in self.power.items()]
        return {**self._asdict(), "power": power}

    def rows(self, plan: Plan | LivePlan) -> list[list[str]]:
        used = [f"{shared} by {name}" for name, shared in self.uses.items()]
        return [
            ["candidate", plan.candidate],
            ["champion", plan.champion],
            [plan.counted, f"at most {plan.most}, {self.rollouts} rollouts"],
            *([] if self.cost is None else [["cost", f"about {self.cost:.4g}"]]),
            *([["tasks used before", ", ".join(used)]] if used else []),
            *(
                [f"shows +{gain * plan.width:g}", f"in {value:.0%}"]
                for gain, value in self.power.items()
            ),
        ]


async def _foreseen(store: LightningStore, plan: Plan | LivePlan) -> _Foreseen:
    from agl_promote.known import earlier_uses, what_is_known
    from agl_promote.plan import LivePlan
    from agl_promote.power import GAINS, power_of

    if isinstance(plan, LivePlan):
        known = await what_is_known(store, plan)
        power = {gain: power_of(plan, known.rewards, gain) for gain in GAINS}
        return _Foreseen(power, plan.most, None, {})
    known = await what_is_known(store, plan, plan.price)
    rollouts = 2 * plan.repeats * plan.most
    cost = None if known.cost is None else known.cost * rollouts
    affordable = None
    if plan.max_cost is not None and cost:
        affordable = int(plan.most * plan.max_cost / cost)
        cost = min(cost, plan.max_cost)
    power = {gain: power_of(plan, known.rewards, gain, most=affordable) for gain in GAINS}
    return _Foreseen(power, rollouts, cost, await earlier_uses(store, plan.tasks))
