from .config import PostgresConfig as PostgresConfig
from .store import PostgresLightningStore as PostgresLightningStore
