from .tracker import (
    WandbConfig as WandbConfig,
    WandbTracker as WandbTracker,
)
