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

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
