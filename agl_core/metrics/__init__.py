"""Metrics: counters, gauges and histograms of a run, and the backends that receive them.

Code that measures calls :func:`record` with a :class:`Metric` that it defines once. Without an
active backend that is one comparison. :func:`recording` makes a backend active in this process;
a trainer and a store server do it for their ``tracker``.
"""

from agl_core.metrics._active import Recorder, build_tracker, is_recording, record, recording
from agl_core.metrics._base import Instrument, Metric, Metrics
from agl_core.metrics._store import MeasureCalls, sampled

__all__ = [
    "Instrument",
    "MeasureCalls",
    "Metric",
    "Metrics",
    "Recorder",
    "build_tracker",
    "is_recording",
    "record",
    "recording",
    "sampled",
]
