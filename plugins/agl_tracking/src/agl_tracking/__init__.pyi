from .tracker import (
    Run as Run,
    RunTracker as RunTracker,
    TrackerConfig as TrackerConfig,
)
