"""The metrics alone: one counter and one histogram, with a backend of your own."""

from __future__ import annotations

import time
from collections import defaultdict

from agl_core.metrics import Instrument, Metric, Metrics, record, recording

CALLS = Metric("counter", "shop.calls", "Calls of the shop.", labels=("status",))
SECONDS = Metric("histogram", "shop.seconds", "Duration of a call.", unit="s")


class Table(Metrics):
    """Keeps every value; the backends of the repository keep sums, which costs no memory."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[tuple[str, tuple[str, ...]], list[float]] = defaultdict(list)

    def instrument(self, metric: Metric) -> Instrument:
        return lambda value, labels: self.values[metric.name, labels].append(value)


def buy(count: int) -> None:
    started = time.perf_counter()
    record(CALLS, 1, "ok" if count else "refused")
    record(SECONDS, time.perf_counter() - started)


def main() -> None:
    table = Table()
    buy(1)  # no backend is active: one comparison, and nothing is kept
    with recording(table):
        for count in (3, 0, 2):
            buy(count)
    print("metric        labels       values       sum")
    for (name, labels), values in sorted(table.values.items()):
        print(f"{name:13} {','.join(labels):12} {len(values):6} {sum(values):9.2g}")


if __name__ == "__main__":
    main()
