from .config import MongoConfig as MongoConfig
from .store import MongoLightningStore as MongoLightningStore
