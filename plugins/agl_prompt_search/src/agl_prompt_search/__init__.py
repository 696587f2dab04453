"""Shared parts of algorithms that search for better prompts by asking a model.

A search keeps a history of candidates (:mod:`.state`), calls models under a budget (:mod:`.chat`,
:mod:`.model_calls`, :mod:`.budget`), shows them the rollouts (:mod:`.experiments`), reads the
prompt in a reply (:mod:`.replies`), rejects one that lost a placeholder (:mod:`.templates`), lets
the model try changes on recorded rollouts
(:mod:`.what_if`), and reports its progress (:mod:`.report`).
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
