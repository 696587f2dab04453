from .betting import (
    Wealth as Wealth,
    gain_at_least as gain_at_least,
)
from .episodes import (
    Episode as Episode,
    assigned_to_candidate as assigned_to_candidate,
)
from .evidence import (
    Decision as Decision,
    Evidence as Evidence,
    Pair as Pair,
)
from .experiment import Experiment as Experiment
from .plan import (
    Guardrail as Guardrail,
    LivePlan as LivePlan,
    Plan as Plan,
)
from .planned import (
    looks_of as looks_of,
    planned_bound as planned_bound,
)
from .pointer import LivePointer as LivePointer
from .power import power_of as power_of
from .promotion import Promotion as Promotion
from .traffic import LiveTrial as LiveTrial
from .trial import (
    LiveAssignment as LiveAssignment,
    Trial as Trial,
)
