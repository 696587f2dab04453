"""Promotion on evidence: a prompt or policy goes live only if it is shown to be better.

::

    plan = Plan(name="booking", champion="night/v0", candidate="night/v12", …)
    await Promotion.create(store, plan)          # before any data; never changed
    trainer.algorithm = Experiment(await Promotion.open(store, "booking"))
    trainer.fit(agent, tasks)                    # paired rollouts, until there is a decision

The question is whether the candidate is better than what is live on tasks like those that will
come. :mod:`.betting` and :mod:`.planned` are the two tests, :mod:`.evidence` applies a plan to
data, :mod:`.promotion` keeps both in a store, and :mod:`.pointer` is what is live.
:mod:`.experiment` runs pairs of rollouts on tasks; :mod:`.trial` assigns live traffic, and
:mod:`.traffic` reads it. :mod:`.power` says before what a plan can show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_promote.betting import Wealth, gain_at_least
    from agl_promote.episodes import Episode, assigned_to_candidate
    from agl_promote.evidence import Decision, Evidence, Pair
    from agl_promote.experiment import Experiment
    from agl_promote.plan import Guardrail, LivePlan, Plan
    from agl_promote.planned import looks_of, planned_bound
    from agl_promote.pointer import LivePointer
    from agl_promote.power import power_of
    from agl_promote.promotion import Promotion
    from agl_promote.traffic import LiveTrial
    from agl_promote.trial import LiveAssignment, Trial

_HOMES = {
    "Decision": "agl_promote.evidence",
    "Episode": "agl_promote.episodes",
    "Evidence": "agl_promote.evidence",
    "Experiment": "agl_promote.experiment",
    "Guardrail": "agl_promote.plan",
    "LiveAssignment": "agl_promote.trial",
    "LivePlan": "agl_promote.plan",
    "LivePointer": "agl_promote.pointer",
    "LiveTrial": "agl_promote.traffic",
    "Pair": "agl_promote.evidence",
    "Plan": "agl_promote.plan",
    "Promotion": "agl_promote.promotion",
    "Trial": "agl_promote.trial",
    "Wealth": "agl_promote.betting",
    "assigned_to_candidate": "agl_promote.episodes",
    "gain_at_least": "agl_promote.betting",
    "looks_of": "agl_promote.planned",
    "planned_bound": "agl_promote.planned",
    "power_of": "agl_promote.power",
}

__all__ = [
    "Decision",
    "Episode",
    "Evidence",
    "Experiment",
    "Guardrail",
    "LiveAssignment",
    "LivePlan",
    "LivePointer",
    "LiveTrial",
    "Pair",
    "Plan",
    "Promotion",
    "Trial",
    "Wealth",
    "assigned_to_candidate",
    "gain_at_least",
    "looks_of",
    "planned_bound",
    "power_of",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
