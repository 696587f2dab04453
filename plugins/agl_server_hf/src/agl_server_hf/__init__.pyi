from .config import HFServerConfig as HFServerConfig
from .server import HFServer as HFServer
from .threads import default_threads as default_threads
from .weights import (
    choose_device as choose_device,
    choose_dtype as choose_dtype,
    load_model as load_model,
)
