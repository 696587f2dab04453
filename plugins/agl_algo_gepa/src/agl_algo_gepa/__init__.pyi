from .algorithm import GEPA as GEPA
from .config import (
    GEPAConfig as GEPAConfig,
    Price as Price,
)
from .state import (
    Candidate as Candidate,
    GEPAState as GEPAState,
)
