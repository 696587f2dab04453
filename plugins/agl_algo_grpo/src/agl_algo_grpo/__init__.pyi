from .algorithm import GRPO as GRPO
from .config import (
    CreditConfig as CreditConfig,
    GRPOConfig as GRPOConfig,
    LoRAConfig as LoRAConfig,
    PolicyConfig as PolicyConfig,
)
