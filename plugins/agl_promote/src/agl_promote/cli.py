"""The command ``agl promote``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from agl_cli_kit import print_json, print_table
from agl_core.errors import ConfigError
from agl_promote.options import file_argument, json_option, name_option, opened, set_option
from agl_promote.plan_command import plan

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_promote.promotion import Promotion

_WATCH: Final = {
    "on": "the watch is on",
    "kept": "the watch is over: the old version is not shown better",
    "rolled back": "the watch is over: rolled back",
    "ended": "the watch is over: what is live was changed",
}
"""What people read about each state of the watch."""

check_option = click.option(
    "--check",
    is_flag=True,
    help="Exit with 1 unless the candidate is promoted, and the watch keeps it.",
)


@click.group(
    epilog="Example: agl promote plan train.toml --name booking --candidate night/v12 "
    "--champion night/v0 --tasks fresh.jsonl --range 0 1; agl promote run train.toml --name booking"
)
def promote() -> None:
    """Make a prompt or policy live if a test shows that it is better, on tasks or live traffic.

    FILE is a train file: its agent runs the tasks, and its store keeps plan, evidence and what is
    live. A rollout with the resources live:NAME receives what is live.
    """


promote.add_command(plan)


@promote.command(epilog="Example: agl promote run train.toml --name booking --check")
@file_argument
@name_option
@click.option("--tasks", "source", help="The tasks, if they are elsewhere now.")
@check_option
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
    from agl_promote.plan import Plan
    from agl_promote.promotion import Promotion
    from agl_train import INTERRUPTED, load_dataset, set_up_logging, stopped_by_signals

    with opened(file, overrides) as (train_plan, trainer):
        set_up_logging(train_plan)
        promotion = asyncio.run(Promotion.open(trainer.store, name))
        if not isinstance(promotion.plan, Plan):
            raise ConfigError(f"{name} is about live traffic: agl promote serve {file}")
        tasks = load_dataset(source or promotion.plan.source, Path.cwd(), path="--tasks")
        experiment = Experiment(promotion)
        trainer.algorithm, trainer.run = experiment, run_name(promotion)
        # Before the runners start: those of a second process would take rollouts of the first.
        asyncio.run(promotion.acquire())
        try:
            with stopped_by_signals():
                trainer.fit(train_plan.agent, tasks)
        finally:
            asyncio.run(promotion.release())
        promotion = asyncio.run(Promotion.open(trainer.store, name))
        shown = asyncio.run(_facts(trainer.store, promotion))
    _print_facts(shown, as_json)
    if trainer.interrupted:
        click.echo(f"resume it: agl promote run {file} --name {name}", err=as_json)
        return INTERRUPTED
    return int(check and not _is_promoted(shown))


@promote.command(epilog="Example: agl promote serve train.toml --name booking")
@file_argument
@name_option
@check_option
@json_option
@set_option
def serve(file: Path, name: str, check: bool, as_json: bool, overrides: Sequence[str]) -> int:
    """Try the candidate of a plan on live traffic; an interrupted trial is resumed.

    The traffic is rollouts that others enqueue with the resources live:NAME. Each new one gets
    champion or candidate, also while this command does not run. It reads their rewards until there
    is a decision. After a promotion it watches a holdback on the old version, and rolls back if
    that is shown to be better.
    """
    from agl_promote.plan import LivePlan
    from agl_promote.promotion import Promotion
    from agl_promote.traffic import LiveTrial
    from agl_train import INTERRUPTED, set_up_logging, stopped_by_signals

    interrupted = False
    with opened(file, overrides) as (train_plan, trainer):
        set_up_logging(train_plan)
        promotion = asyncio.run(Promotion.open(trainer.store, name))
        if not isinstance(promotion.plan, LivePlan):
            raise ConfigError(f"{name} is about tasks: agl promote run {file}")
        with stopped_by_signals():
            try:
                asyncio.run(LiveTrial(promotion).run())
            except KeyboardInterrupt:
                interrupted = True
        promotion = asyncio.run(Promotion.open(trainer.store, name))
        shown = asyncio.run(_facts(trainer.store, promotion))
    _print_facts(shown, as_json)
    if interrupted:
        click.echo(f"resume it: agl promote serve {file} --name {name}", err=as_json)
        return INTERRUPTED
    return int(check and not _is_promoted(shown))


@promote.command(epilog="Example: agl promote show train.toml --name booking --json")
@file_argument
@name_option
@json_option
@set_option
def show(file: Path, name: str, as_json: bool, overrides: Sequence[str]) -> None:
    """Show a promotion: its decision, what is shown, and what is live.

    NAME of an earlier one is what the later one says that it follows, such as booking:3f1c0a92b7de.
    """
    from agl_promote.promotion import Promotion

    with opened(file, overrides) as (_, trainer):
        promotion = asyncio.run(Promotion.open(trainer.store, name))
        shown = asyncio.run(_facts(trainer.store, promotion))
    _print_facts(shown, as_json)


@promote.command(epilog="Example: agl promote rollback train.toml --name booking")
@file_argument
@name_option
@click.option("--why", default="by hand", show_default=True, help="Reason, for the history.")
@set_option
def rollback(file: Path, name: str, why: str, overrides: Sequence[str]) -> None:
    """Make live again what was live before; of a candidate in a trial, only end the trial.

    Repeated, it makes live what was live before that.
    """
    from agl_promote.pointer import LivePointer

    async def back(store: LightningStore) -> str:
        live = await LivePointer.read(store, name)
        if live.tried is not None:
            await live.roll_back(store, f"trial of {live.tried} ended: {why}")
            return f"the trial of {live.tried} is over; live:{name} is {live.resources_id}"
        now = await live.roll_back(store, f"rolled back: {why}")
        return f"live:{name} is {now.resources_id} again"

    with opened(file, overrides) as (_, trainer):
        said = asyncio.run(back(trainer.store))
    click.echo(said)


async def _facts(store: LightningStore, promotion: Promotion[Any]) -> dict[str, Any]:
    from agl_promote.known import earlier_uses
    from agl_promote.plan import LivePlan, Plan
    from agl_promote.pointer import LivePointer
    from agl_promote.promotion import label_of
    from agl_promote.traffic import watch_state

    plan, decision = promotion.plan, promotion.decision
    live = await LivePointer.read(store, plan.name)
    watch = watch_state(promotion, live) if isinstance(plan, LivePlan) else None
    uses = await earlier_uses(store, plan.tasks) if isinstance(plan, Plan) else {}
    return {
        "name": promotion.label,
        "follows": label_of(plan.name, plan.follows) if plan.follows else "",
        "candidate": plan.candidate,
        "champion": plan.champion,
        "decision": "undecided" if decision is None else decision.kind,
        "why": "" if decision is None else decision.why,
        "at_least": None if decision is None else decision.at_least,
        "gain": None if decision is None else decision.gain,
        "pairs": promotion.pairs if decision is None else decision.pairs,
        "of": plan.most,
        "counted": plan.counted,
        "guardrails": {} if decision is None else dict(decision.guardrails),
        "uses": {name: shared for name, shared in uses.items() if name != promotion.label},
        "watched": len(promotion.recall("watched", [])),
        "watch": watch,
        "rolled_back": watch == "rolled back",
        "live_name": f"live:{plan.name}",
        "live": live.resources_id,
        "trial": None if live.trial is None else live.trial._asdict(),
        "history": live.history,
    }


def _is_promoted(shown: dict[str, Any]) -> bool:
    return shown["decision"] == "promote" and shown["watch"] in (None, "kept")


def _print_facts(shown: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(shown)
        return
    rows = [
        ["promotion", shown["name"]],
        ["decision", f"{shown['decision']}: {shown['why']}".rstrip(": ")],
        [shown["counted"], f"{shown['pairs']} of at most {shown['of']}"],
    ]
    if shown["gain"] is not None:
        rows.append(["gain", f"{shown['gain']:+.3f}, shown to be above {shown['at_least']:+.3f}"])
    rows += [[f"  {key}", f"above {low:+.3f}"] for key, low in shown["guardrails"].items()]
    if shown["uses"]:
        used = ", ".join(f"{shared} of {name}" for name, shared in shown["uses"].items())
        rows.append(["tasks also in", used])
    if shown["watch"]:
        rows.append(["watched", f"{shown['watched']} episodes, {_WATCH[shown['watch']]}"])
    if trial := shown["trial"]:
        both = f"{trial['share']:.0%} {trial['candidate']}, rest {trial['champion']}"
        rows.append(["traffic", both])
    rows.append([shown["live_name"], shown["live"] or "nothing"])
    if shown["follows"]:
        rows.append(["follows", shown["follows"]])
    print_table(["", ""], rows)
