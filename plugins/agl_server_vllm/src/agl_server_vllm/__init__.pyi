from .config import VLLMConfig as VLLMConfig
from .server import VLLMServer as VLLMServer
