from .config import HFServerConfig as HFServerConfig
from .server import HFServer as HFServer
from .weights import (
    choose_device as choose_device,
    choose_dtype as choose_dtype,
    load_model as load_model,
)
