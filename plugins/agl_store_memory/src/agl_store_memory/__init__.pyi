from .store import (
    InMemoryLightningStore as InMemoryLightningStore,
)
