"""The backend ``prometheus``."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agl_core.metrics import Instrument, Metric, Metrics
from agl_core.plugins import ComponentConfig, configured_by
from agl_metrics_prometheus.totals import totals_of

__all__ = ["FOLDER_VARIABLE", "PrometheusConfig", "PrometheusMetrics"]

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of the client library, as in version 0.3."""


class PrometheusConfig(ComponentConfig):
    """Options of :class:`PrometheusMetrics`."""

    folder: Path | None = None
    """Where the processes of a run share their sums. By default PROMETHEUS_MULTIPROC_DIR, or a
    temporary folder that is removed when the process ends."""


class PrometheusMetrics(Metrics):
    """Sums values in memory and shares them with the processes of a run through a folder.

    The page ``/v1/prometheus`` of the store server and ``agl prometheus`` show them.
    """

    counts_histograms = True

    @configured_by(PrometheusConfig)
    def __init__(self, config: PrometheusConfig) -> None:
        super().__init__()
        given = config.folder or os.environ.get(FOLDER_VARIABLE)
        self.folder = Path(given).absolute() if given else _temporary_folder()
        self._totals = totals_of(self.folder)

    def instrument(self, metric: Metric) -> Instrument:
        return self._totals.instrument(metric)

    def bound(self, metric: Metric, labels: tuple[str, ...]) -> Callable[[float], None] | None:
        try:
            self.find(metric)
        except ValueError:
            return None  # the error is raised, and logged, when a value is recorded
        return self._totals.bound(metric, labels, self)

    def listeners(self) -> Sequence[object]:
        return ()

    def close(self) -> None:
        """Write the sums of this process to the folder."""
        self._totals.release(self)
        self._totals.write()

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._totals = totals_of(self.folder)


def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="agl-prometheus-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child inherits the call
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
