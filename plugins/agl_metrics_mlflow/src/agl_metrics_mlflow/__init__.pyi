from .tracker import (
    MlflowConfig as MlflowConfig,
    MlflowTracker as MlflowTracker,
)
