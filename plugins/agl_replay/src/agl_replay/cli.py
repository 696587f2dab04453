"""``agl replay``: runs an agent again on a recorded rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from agl_cli_kit import open_store, print_json, store_options
from agl_core.errors import ConfigError
from agl_replay.report import result_as_json, reward_text

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_replay import Recording, ReplayResult
    from agl_train import TrainPlan

__all__ = ["UNUSED_KEYS", "live_model_list", "load_plan", "open_recording", "replay"]

_TRAIN_FILE: Final = "train.toml"
_FILES: Final = (".toml", ".yaml", ".yml", ".json")
UNUSED_KEYS: Final = (
    "adapter",
    "algorithm",
    "interceptors",
    "llm_server",
    "proxy",
    "runner",
    "strategy",
    "test_dataset",
    "tracker",
    "train_dataset",
    "trainer",
    "val_dataset",
)
"""Keys of a train file that a replay does not use."""
_OF_RUNS: Final = ("fork_at", "samples", "until", "on_divergence", "live", "api_key")
_EXCLUDES: Final = {
    "save": ("check", *_OF_RUNS),
    "check": _OF_RUNS,
    "fork_at": ("until",),
}
"""What an option would ignore, by the option; the first that is given counts."""


@click.command(epilog="Example: agl replay ro-1234 --path agl.db --agent agent.py:solve")
@click.argument("rollout")
@store_options
@click.option(
    "--agent",
    metavar="FILE",
    default=_TRAIN_FILE,
    show_default=True,
    help='The agent: a train file, or "file.py:name" or "package.module:name".',
)
@click.option(
    "--attempt",
    default="latest",
    show_default=True,
    metavar="ATTEMPT",
    help="Which attempt: its number (1, 2, …), its id, or latest.",
)
@click.option(
    "--until", type=click.IntRange(min=0), metavar="N", help="Stop the agent after N model calls."
)
@click.option(
    "--on-divergence",
    type=click.Choice(["stop", "live"]),
    default="stop",
    show_default=True,
    help="What to do when the agent makes another call than the recorded one: refuse it, or send "
    "it and all later ones to the live model.",
)
@click.option(
    "--live",
    "live",
    multiple=True,
    metavar="MODEL=BASE_URL",
    help="A live model and the base URL of its server; repeatable. PROVIDER/MODEL=BASE_URL names "
    "the kind of server, by default hosted_vllm.",
)
@click.option(
    "--api-key",
    envvar="AGL_PROXY_API_KEY",
    show_envvar=True,
    help="API key of the live models' servers.",
)
@click.option(
    "--fork-at",
    type=click.IntRange(min=0),
    metavar="N",
    help="Replay N calls, and sample the rest from the live model; the forks go to the store.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    metavar="M",
    default=1,
    show_default=True,
    help="Number of forks.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Run the agent twice, and name each line that reads the time, random numbers, files or "
    "the network, or depends on the order of a set.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="SUITE",
    help="Run nothing; add the rollout to a file of recordings for `agl eval FILE --replay SUITE`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.pass_context
def replay(
    ctx: click.Context,
    rollout: str,
    backend: str | None,
    path: str | None,
    url: str | None,
    agent: str,
    attempt: str,
    until: int | None,
    on_divergence: Any,
    live: tuple[str, ...],
    api_key: str | None,
    fork_at: int | None,
    samples: int,
    check: bool,
    save: Path | None,
    as_json: bool,
) -> int:
    """Run the agent again on ROLLOUT: the recorded answers replace the model.

    ROLLOUT is an id, a unique part of an id, or latest. Exits with 0 if the agent makes the
    recorded calls and comes to the same reward and spans, and with 1 if not. The first call that
    differs is shown with what was asked then and now.
    """
    from agl_replay import replay as run

    _check_options(_given(ctx), goes_live=fork_at is not None or on_divergence == "live")
    if save is not None:
        store = open_store(backend, path, url, reading=True)
        return _save(store, (rollout, attempt), save, as_json)
    if check:
        from agl_replay.check import check_agent

        where = {"backend": backend, "path": path, "url": url}
        names = {"agent": agent, "rollout": rollout, "attempt": attempt}
        return check_agent({**names, **where}, as_json)
    plan = load_plan(agent)
    models = live_model_list(live, api_key)
    if fork_at is not None:
        store = open_store(backend, path, url)
        return _fork(
            plan,
            store,
            (rollout, attempt),
            as_json,
            at=fork_at,
            samples=samples,
            on_divergence=on_divergence,
            model_list=models,
        )
    store = open_store(backend, path, url, reading=True)

    async def main() -> ReplayResult:
        try:
            return await run(
                plan.agent,
                await open_recording(store, rollout, attempt),
                until=until,
                on_divergence=on_divergence,
                model_list=models,
                tracer=plan.build_trainer(with_algorithm=False).tracer,
                hooks=plan.hooks,
            )
        finally:
            await store.close()

    result = asyncio.run(main())
    if as_json:
        print_json(result_as_json(result))
    else:
        click.echo(str(result))
    return 0 if result.same or result.stopped else 1


def _given(ctx: click.Context) -> set[str]:
    """Return the options on the command line; the environment gives a key to every command."""
    names = (option.name or "" for option in ctx.command.params)
    return {one for one in names if ctx.get_parameter_source(one) is ParameterSource.COMMANDLINE}


def _check_options(given: set[str], *, goes_live: bool) -> None:
    """Check that each option is used.

    Args:
        given: The options on the command line.
        goes_live: Whether calls may go to a live model.

    Raises:
        UsageError: One would be ignored.
    """

    def spelled(option: str) -> str:
        return f"--{option.replace('_', '-')}"

    for option, others in _EXCLUDES.items():
        for other in others if option in given else ():
            if other in given:
                raise click.UsageError(f"{spelled(option)} and {spelled(other)} exclude each other")
    if "samples" in given and "fork_at" not in given:
        raise click.UsageError("--samples needs --fork-at")
    for option in ("live", "api_key"):
        if option in given and not goes_live:
            raise click.UsageError(f"{spelled(option)} needs --fork-at or --on-divergence live")


def _save(store: LightningStore, wanted: tuple[str, str], path: Path, as_json: bool) -> int:
    """Add a rollout to a suite and say so; ``wanted`` as in :func:`_fork`."""
    from agl_replay.suites import add_to_suite

    async def main() -> Recording:
        try:
            return await open_recording(store, *wanted)
        finally:
            await store.close()

    recording = asyncio.run(main())
    count = add_to_suite(path, recording)
    rollout_id = recording.rollout.rollout_id
    if as_json:
        print_json({"rollout_id": rollout_id, "suite": str(path), "recordings": count})
    else:
        click.echo(f"{rollout_id} saved; {path} has {count} recording{'s' * (count > 1)}")
    return 0


def _fork(
    plan: TrainPlan, store: LightningStore, wanted: tuple[str, str], as_json: bool, **options: Any
) -> int:
    """Fork a rollout and print the forks.

    Args:
        plan: Names the agent.
        store: The store.
        wanted: The rollout and the attempt, as the user names them.
        as_json: Whether to print JSON.
        options: Arguments of :func:`agl_replay.fork`.
    """
    from agl_replay import fork
    from agl_replay.recording import final_reward
    from agl_trace import find_attempt, find_rollout

    async def main() -> list[dict[str, Any]]:
        try:
            parent = await find_rollout(store, wanted[0])
            attempts = (await store.query_attempts(parent.rollout_id)).items
            forks = await fork(
                plan.agent,
                parent.rollout_id,
                store,
                attempt_id=find_attempt(parent, attempts, wanted[1]).attempt_id,
                tracer=plan.build_trainer(with_algorithm=False).tracer,
                hooks=plan.hooks,
                **options,
            )
            return [
                {
                    "rollout_id": one.rollout_id,
                    "parent_id": parent.rollout_id,
                    "turn": options["at"],
                    "status": one.status,
                    "reward": final_reward(await store.query_spans(one.rollout_id)),
                }
                for one in forks
            ]
        finally:
            await store.close()

    forks = asyncio.run(main())
    if as_json:
        print_json({"forks": forks})
    else:
        for one in forks:
            where = f"fork {one['rollout_id']} after call {one['turn']}"
            click.echo(f"{where}: {one['status']}, reward {reward_text(one['reward'])}")
    return 0 if any(one["status"] == "succeeded" for one in forks) else 1


async def open_recording(store: LightningStore, rollout: str, attempt: str) -> Recording:
    """Return the recording that the user of a command names."""
    from agl_replay import read_recording
    from agl_trace import find_attempt, find_rollout

    found = await find_rollout(store, rollout)
    attempts = (await store.query_attempts(found.rollout_id)).items
    chosen = find_attempt(found, attempts, attempt)
    return await read_recording(store, found.rollout_id, chosen.attempt_id)


def load_plan(agent: str) -> TrainPlan:
    """Return the plan that names the agent.

    Raises:
        ConfigError: There is no such file, or it has mistakes.
    """
    from agl_train import TrainFile, TrainPlan, read_train_file

    if not agent.endswith(_FILES):
        return TrainPlan(TrainFile(agent=agent, store="memory"), Path.cwd())
    if not Path(agent).is_file():
        raise ConfigError(
            f"there is no file {agent}: name the agent, e.g. --agent agent.py:solve", path="--agent"
        )
    return read_train_file(agent, ("store=memory",), without=(*UNUSED_KEYS, "resources"))


def live_model_list(live: Sequence[str], api_key: str | None) -> list[dict[str, Any]]:
    """Return the model list of ``--live`` options.

    Raises:
        ConfigError: An option is not of the form ``MODEL=BASE_URL``.
    """
    from agl_proxy_direct import providers

    entries: list[dict[str, Any]] = []
    for text in live:
        name, equals, url = text.rpartition("=")
        if not equals or not name or "://" not in url:
            raise ConfigError(f"--live takes MODEL=BASE_URL, not {text!r}")
        kind, slash, rest = name.partition("/")
        known = bool(slash) and kind in providers()
        params = {"model": name if known else f"hosted_vllm/{name}", "api_base": url}
        if api_key is not None:
            params["api_key"] = api_key
        entries.append({"model_name": rest if known else name, "litellm_params": params})
    return entries
