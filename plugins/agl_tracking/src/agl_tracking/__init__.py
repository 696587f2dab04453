"""The code that the experiment trackers of agl share: a run's events become calls that write."""

from agl_tracking.tracker import Run, RunTracker, TrackerConfig

__all__ = ["Run", "RunTracker", "TrackerConfig"]
