"""``agl simulate``: predicts the throughput of a cluster from recorded rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from agl_cli_kit import open_store, print_json, store_options
from agl_core.algorithm import show_progress
from agl_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agl_core.store import LightningStore
    from agl_simulate import Advice, Cluster, Prediction, Workload

__all__ = ["simulate"]

_PRICED: Final = ("runner", "server", "trainer")


@click.command(epilog="Example: agl simulate --store runs.db --runners 1000 --servers 8")
@click.option("--store", help="The store: a file, or the URL of a store server.")
@store_options
@click.option(
    "--runners", type=click.IntRange(1), help="Rollouts at a time.  [default: as recorded]"
)
@click.option("--servers", type=click.IntRange(1), help="Model servers.  [default: as recorded]")
@click.option(
    "--mode",
    type=click.Choice(["sync", "overlap", "open"]),
    help="sync: a batch and an update in turns; overlap: the next batch runs during the update, "
    "one step off; open: no updates.  [default: sync if the record has batches, else open]",
)
@click.option("--rollouts", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--batch", type=click.IntRange(1), help="Rollouts per batch.  [default: as recorded]")
@click.option(
    "--update-seconds",
    type=click.FloatRange(0),
    help="Seconds of an update.  [default: as recorded]",
)
@click.option(
    "--arrivals", type=click.FloatRange(0, min_open=True), help="Rollouts per second; with open."
)
@click.option(
    "--recorded-servers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Model servers in the record.",
)
@click.option(
    "--server-limit",
    type=click.FloatRange(0, min_open=True),
    help="Calls at a time that a model server serves at full speed.  [default: as recorded]",
)
@click.option(
    "--proxy-limit",
    type=click.FloatRange(0, min_open=True),
    help="Most model calls per second of the proxy.",
)
@click.option(
    "--store-limit",
    type=click.FloatRange(0, min_open=True),
    help="Most rollouts per second of the store.",
)
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="NAME=PRICE",
    help="Price per hour of one runner, one server or the trainer; repeatable.",
)
@click.option(
    "--newest",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    help="Rollouts to read from the store.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random draws.")
@click.option(
    "--chart", type=click.Path(dir_okay=False, path_type=Path), help="Write the chart as SVG here."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def simulate(
    store: str | None,
    backend: str | None,
    path: str | None,
    url: str | None,
    runners: int | None,
    servers: int | None,
    mode: Any,
    rollouts: int,
    batch: int | None,
    update_seconds: float | None,
    arrivals: float | None,
    recorded_servers: int,
    server_limit: float | None,
    proxy_limit: float | None,
    store_limit: float | None,
    prices: tuple[str, ...],
    newest: int,
    seed: int,
    chart: Path | None,
    as_json: bool,
) -> int:
    """Predict the throughput of a cluster.

    The lengths of rollouts and model calls, failures, updates and the limit of the model servers
    come from the rollouts in a store. Predicts the throughput, what is idle, the time in the queue,
    the staleness and the cost, and says what saturates first.
    """
    from agl_simulate import Cluster, advise, simulate as run

    if store is not None:
        if url is not None or path is not None:
            raise ConfigError("--store and --path or --url mean different stores")
        url, path = (store, None) if store.startswith("http") else (None, store)
    if arrivals is not None and mode not in (None, "open"):
        raise ConfigError(f"--arrivals needs --mode open, not {mode}")
    priced = _prices(prices)
    opened = open_store(backend, path, url, reading=True)
    workload = asyncio.run(_fit(opened, newest, recorded_servers))
    if update_seconds is not None:
        workload = replace(workload, updates=(update_seconds,))
    if server_limit is not None:
        workload = replace(workload, server_limit=server_limit)
    batch = batch or workload.batch
    cluster = Cluster(
        runners=runners or workload.runners,
        servers=servers or workload.servers,
        mode=mode or ("sync" if batch is not None and arrivals is None else "open"),
        batch=batch,
        arrivals_per_second=arrivals,
        proxy_limit=proxy_limit,
        store_limit=store_limit,
        prices=priced,
    )
    with _progress(rollouts) as progress:
        found = run(workload, cluster, rollouts=rollouts, seed=seed, progress=progress)
    advice = advise(workload, cluster, rollouts=rollouts, seed=seed)
    if chart is not None:
        from agl_simulate.chart import svg_chart

        chart.write_text(svg_chart(advice.by_runners, _title(cluster)))
    if as_json:
        print_json(_as_json(workload, cluster, found, advice))
        return 0
    for line in _lines(workload, cluster, found, advice):
        click.echo(line)
    return 0


async def _fit(store: LightningStore, newest: int, servers: int) -> Workload:
    from agl_simulate import fit

    try:
        return await fit(store, newest=newest, servers=servers)
    finally:
        await store.close()


def _prices(items: Sequence[str]) -> dict[str, float]:
    prices: dict[str, float] = {}
    for item in items:
        name, _, price = item.partition("=")
        try:
            prices[name] = float(price)
        except ValueError:
            prices[name] = -1.0
        if name not in _PRICED or prices[name] < 0:
            raise ConfigError(f"--price is NAME=PRICE with a name of {_PRICED}, not {item!r}")
    return prices


@contextmanager
def _progress(rollouts: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of a long simulation."""
    ended = 0
    with show_progress("rollouts", rollouts) as progress:

        def update(more: int) -> None:
            nonlocal ended
            ended += more
            progress.update(ended)

        yield update


# -- output ----------------------------------------------------------------------------------------


def _title(cluster: Cluster) -> str:
    batches = f", batches of {cluster.batch:,}" if cluster.batch and cluster.mode != "open" else ""
    servers = "model server" if cluster.servers == 1 else "model servers"
    mode = {"sync": "in turns", "overlap": "one step off", "open": "without updates"}[cluster.mode]
    return f"{cluster.runners:,} runners, {cluster.servers:,} {servers}{batches}, {mode}"


def _lines(
    workload: Workload, cluster: Cluster, found: Prediction, advice: Advice
) -> Iterator[str]:
    from agl_simulate.chart import text_chart

    count = len(workload.profiles)
    calls = sum(profile.calls for profile in workload.profiles) / count
    in_calls = sum(profile.call_seconds for profile in workload.profiles) / count
    seconds = sum(profile.seconds for profile in workload.profiles) / count
    failed = sum(profile.failed for profile in workload.profiles) / count
    yield (
        f"Recorded: {count:,} attempts of {seconds:.2f} s, {in_calls:.2f} s of it in {calls:.1f} "
        f"model calls; {failed:.1%} failed"
    )
    if workload.server_limit is not None:
        yield f"A model server serves {workload.server_limit:.0f} calls at a time at full speed"
    yield ""
    yield f"{_title(cluster)}:"
    yield f"  throughput     {found.rollouts_per_second:,.2f} rollouts/s"
    yield f"  time           {_duration(found.seconds)} for {found.rollouts:,} rollouts"
    busy = {
        "runners": found.runners_busy,
        "model servers": found.servers_busy,
        "proxy": found.proxy_busy,
        "store": found.store_busy,
        "trainer": found.trainer_busy if cluster.mode != "open" else None,
    }
    shares = [f"{name} {share:.0%}" for name, share in busy.items() if share is not None]
    yield f"  busy           {', '.join(shares)}; no model call in {found.servers_idle:.0%}"
    yield (
        f"  in the queue   {_duration(found.wait_mean)} in the mean, 95 % below "
        f"{_duration(found.wait_p95)}; at most {found.longest_queue:,} rollouts"
    )
    if cluster.mode != "open":
        yield f"  staleness      {found.staleness:.2f} updates"
    retried = found.attempts - found.rollouts
    if found.failed or retried:
        yield f"  failures       {retried:,} retried, {found.failed:,} final"
    if found.cost is not None:
        each = 1000 * found.cost / found.rollouts
        yield f"  cost           {found.cost:,.2f}, {each:,.3f} per 1,000 rollouts"
    yield ""
    yield from text_chart(advice.by_runners, cluster.runners)
    yield ""
    yield from advice.sentences


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _as_json(
    workload: Workload, cluster: Cluster, found: Prediction, advice: Advice
) -> dict[str, Any]:
    return {
        "recorded": {
            "attempts": len(workload.profiles),
            "server_limit": workload.server_limit,
            "most_calls": workload.most_calls,
            "runners": workload.runners,
            "batch": workload.batch,
        },
        "cluster": asdict(cluster),
        "prediction": _with_rate(found),
        "by_runners": [{"runners": n, **_with_rate(each)} for n, each in advice.by_runners],
        "saturates_at": advice.saturates_at,
        "bottleneck": advice.bottleneck,
        "advice": list(advice.sentences),
    }


def _with_rate(found: Prediction) -> dict[str, Any]:
    return {"rollouts_per_second": found.rollouts_per_second, **asdict(found)}
