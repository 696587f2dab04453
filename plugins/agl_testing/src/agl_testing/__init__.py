"""Conformance suites for agl plugins, one per kind, and the helpers their tests need.

Subclass the suite of your component's kind in a test module, supply its fixture, state in ``flags``
what the component claims, and run pytest.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
