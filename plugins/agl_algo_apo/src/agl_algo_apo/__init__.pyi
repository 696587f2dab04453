from .algorithm import APO as APO
from .config import (
    APOConfig as APOConfig,
    Price as Price,
)
from .state import (
    APOState as APOState,
    Candidate as Candidate,
)
