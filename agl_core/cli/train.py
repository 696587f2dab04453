"""``agl train``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agl_core.cli.output import print_json, print_table
from agl_core.cli.runs import (
    INTERRUPTED,
    RunRecord,
    blame,
    listening,
    report_failure,
    run_options,
    set_up_logging,
)

if TYPE_CHECKING:
    from agl_core.trainer.file import TrainPlan
    from agl_core.trainer.trainer import Trainer
    from agl_core.types import ResourcesUpdate

__all__ = ["train"]


@click.command(epilog="Example: agl train train.toml --set trainer.n_runners=8 --json")
@run_options
@click.option("--check", is_flag=True, help="Check everything in FILE and run nothing.")
def train(file: Path, overrides: tuple[str, ...], as_json: bool, check: bool) -> int:
    """Train the agent that FILE (TOML, YAML or JSON) describes.

    Ctrl+C stops the run in good order. The best resources are the latest in the store.
    """
    from agl_core.trainer.file import read_train_file

    record = RunRecord(str(file))
    with report_failure(record, as_json):
        with blame(file):
            plan = read_train_file(file, overrides)
            record.parts = plan.describe()
            if check:
                _print_check(record, as_json)
                return 0
            set_up_logging(plan)
            trainer = plan.build_trainer()
        counts, latest = _fit(trainer, plan, record)
    status = "interrupted" if trainer.interrupted else "succeeded"
    if as_json:
        print_json(
            {
                "run": record.as_json(),
                "status": status,
                "metrics": {**counts, "steps": record.steps, **record.metrics},
                "best_resources": _public(latest) if latest else None,
            }
        )
    else:
        _print_run(record, status, counts, latest)
    return INTERRUPTED if trainer.interrupted else 0


def _fit(
    trainer: Trainer, plan: TrainPlan, record: RunRecord
) -> tuple[dict[str, int], ResourcesUpdate | None]:
    """Run, and return how the rollouts of this run ended and the latest resources."""
    store = trainer.store

    async def look() -> tuple[dict[str, int], ResourcesUpdate | None]:
        return await record.count(store), await store.get_latest_resources()

    before, earlier = asyncio.run(look())
    if earlier is None and trainer.initial_resources is None:
        trainer.initial_resources = {}  # neither the file nor the store has any: none are needed
    try:
        with listening(record):
            trainer.fit(plan.agent, plan.train_dataset, val_dataset=plan.val_dataset)
        after, latest = asyncio.run(look())
    finally:
        asyncio.run(store.close())
    # A durable store holds the rollouts of earlier runs too.
    return {name: after[name] - before[name] for name in after}, latest


def _public(latest: ResourcesUpdate) -> dict[str, Any]:
    """Return a snapshot without the keys in it: output ends up in logs."""
    snapshot = latest.model_dump(mode="json")
    for resource in snapshot["resources"].values():
        resource.pop("api_key", None)
    return snapshot


def _print_check(record: RunRecord, as_json: bool) -> None:
    if as_json:
        print_json({"file": record.file, "status": "ok", "parts": record.parts})
        return
    print_table(["part", "what"], [[key, value] for key, value in record.parts.items()])
    click.echo(f"{record.file} is in order")


def _print_run(
    record: RunRecord, status: str, counts: dict[str, int], latest: ResourcesUpdate | None
) -> None:
    rows = [["run", record.run_id], ["status", status], ["seconds", f"{record.seconds:.1f}"]]
    rows += [[name, str(count)] for name, count in counts.items()]
    rows += [[name, f"{value:.4g}"] for name, value in record.metrics.items()]
    if latest is not None:
        rows.append(["best resources", f"{latest.resources_id} (version {latest.version})"])
        rows += [[f"  {name}", _in_short(it)] for name, it in latest.resources.items()]
    print_table(["", ""], rows)


def _in_short(resource: Any) -> str:
    fields = resource.model_dump(mode="json", exclude={"resource_type", "api_key"})
    return str(fields.get("template") or fields)
