"""``agl runner`` and ``agl algorithm``: the two roles of a run, on different machines.

::

    trainer$ agl algorithm train.toml --host 0.0.0.0      # AGL_AUTH_TOKEN is set everywhere
    worker1$ agl runner train.toml --server trainer -n 8
    worker2$ agl runner train.toml --server trainer -n 8
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from agl_exec_cs.first_contact import has_port
from agl_serving import listen_options
from agl_train import (
    INTERRUPTED,
    blame,
    run_options,
    set_up_logging,
    stopped_by_signals,
    train,
)

__all__ = ["algorithm", "runner"]

_NOT_FOR_RUNNERS: Final = (
    "train_dataset",
    "val_dataset",
    "algorithm",
    "proxy",
    "llm_server",
    "resources",
)
"""Keys that runners do not use; they may name files or packages that their machine lacks."""


@click.command(epilog="Example: agl runner train.toml --server trainer.local -n 8")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a key of FILE, e.g. --set logging.level=DEBUG; may be repeated.",
)
@click.option(
    "--server", metavar="HOST[:PORT]|URL", help="Address of the algorithm's store server."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Its port, if --server is a host without one."
)
@click.option("-n", "--n-runners", type=click.IntRange(min=1), help="Number of processes.")
@click.option(
    "--concurrency", type=click.IntRange(min=1), help="Rollouts at a time in each process."
)
@click.option("--max-rollouts", type=click.IntRange(min=1), help="Most rollouts per runner.")
@click.option(
    "--connect-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Longest wait for a server that has not started; by default as long as it takes.",
)
def runner(
    file: Path,
    overrides: tuple[str, ...],
    server: str | None,
    port: int | None,
    n_runners: int | None,
    concurrency: int | None,
    max_rollouts: int | None,
    connect_timeout: float | None,
) -> int:
    """Run the agent that FILE describes for an algorithm elsewhere.

    Only the agent, the hooks, the tracer and the runner of FILE are used. Ends when the run of the
    algorithm ends. Options that are not given are read from AGL_SERVER_HOST, AGL_SERVER_PORT and
    AGL_AUTH_TOKEN.
    """
    from agl_train import read_train_file

    if server is not None and port is not None and has_port(server):
        raise click.UsageError(f"--port is for a host without a port, not for {server}")
    ours = _overrides(
        {
            "strategy.type": "cs",
            "strategy.role": "runner",
            "strategy.server_host": server,
            "strategy.server_port": port,
            "strategy.connect_timeout": connect_timeout,
            "trainer.n_runners": n_runners,
            "trainer.concurrency": concurrency,
            "trainer.max_rollouts": max_rollouts,
            "store": "memory",
        }
    )
    with blame(file):
        plan = read_train_file(file, (*overrides, *ours), without=_NOT_FOR_RUNNERS)
        set_up_logging(plan)
        trainer = plan.build_trainer()
    with stopped_by_signals():
        trainer.fit(plan.agent)
    return INTERRUPTED if trainer.interrupted else 0


@click.command(epilog="Example: agl algorithm train.toml --host 0.0.0.0 --port 4747")
@run_options
@click.option("--run", "name", metavar="NAME", help="Name of the run, as in agl train.")
@click.option("--resume", is_flag=True, help="Resume a run, as in agl train.")
@listen_options(4747, configured=True)
def algorithm(
    file: Path,
    overrides: tuple[str, ...],
    as_json: bool,
    name: str | None,
    resume: bool,
    host: str | None,
    port: int | None,
) -> Any:
    """Run the algorithm that FILE describes and serve its store to runners elsewhere.

    Like agl train without runners: start them with agl runner. A host other than this machine's own
    needs AGL_AUTH_TOKEN, here and for the runners.
    """
    ours = _overrides(
        {
            "strategy.type": "cs",
            "strategy.role": "algorithm",
            "strategy.server_host": host,
            "strategy.server_port": port,
        }
    )
    return click.get_current_context().invoke(
        train,
        file=file,
        overrides=(*overrides, *ours),
        as_json=as_json,
        name=name,
        resume=resume,
        check=False,
    )


def _overrides(values: dict[str, str | float | None]) -> list[str]:
    """Return the given values as overrides of a train file."""
    return [
        f"{key}='{value}'" if isinstance(value, str) else f"{key}={value}"
        for key, value in values.items()
        if value is not None
    ]
