from .budget import (
    By as By,
    ForkPoint as ForkPoint,
    TurnSpread as TurnSpread,
    choose_forks as choose_forks,
)
from .config import (
    CreditConfig as CreditConfig,
)
from .estimators import (
    call_advantages as call_advantages,
)
from .forked import (
    forked_advantages as forked_advantages,
)
from .paths import (
    Path as Path,
    Turn as Turn,
)
from .prefixes import (
    rtmc_advantages as rtmc_advantages,
    tempo_advantages as tempo_advantages,
)
from .returns import (
    agent_advantages as agent_advantages,
    group_advantages as group_advantages,
    turn_advantages as turn_advantages,
)
from .rewards import (
    named_rewards as named_rewards,
)
from .rows import (
    row_turns as row_turns,
)
