from .config import SqliteConfig as SqliteConfig
from .store import SqliteLightningStore as SqliteLightningStore
