from .client import LightningStoreClient as LightningStoreClient
from .client.config import ClientConfig as ClientConfig
from .client.transport import (
    Reply as Reply,
    Transport as Transport,
)
from .releasing import release_worker as release_worker
from .server.app import (
    StoreApp as StoreApp,
    StoreAppOptions as StoreAppOptions,
)
from .server.doors.mounts import installed_apps as installed_apps
from .server.store_server import LightningStoreServer as LightningStoreServer
