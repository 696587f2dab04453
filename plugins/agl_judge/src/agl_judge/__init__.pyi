from .judge import (
    Judge as Judge,
    Verdict as Verdict,
)
from .rescoring import (
    Rescored as Rescored,
    Scorer as Scorer,
    rescore as rescore,
)
from .scorer_agreement import (
    Agreement as Agreement,
    agreement as agreement,
)
