from .proxy import LiteLLMProxy as LiteLLMProxy
