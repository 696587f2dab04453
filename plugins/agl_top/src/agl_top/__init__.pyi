from .snapshot import (
    Sampler as Sampler,
    Snapshot as Snapshot,
)
