"""Makes APO and GEPA with the model of this example, for ``apo.toml`` and ``gepa.toml``.

Each needs its plugin: ``pip install agl-algo-apo``, ``pip install agl-algo-gepa``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agl_core.errors import MissingDependencyError
from endpoint import ensure_endpoint, model_name

if TYPE_CHECKING:
    from agl_algo_apo import APO
    from agl_algo_gepa import GEPA

__all__ = ["apo", "gepa"]


def apo(**options: Any) -> APO[dict[str, Any]]:
    """Make APO whose critic and editor are the model that the agent runs on.

    Args:
        **options: Options of :class:`~agl_algo_apo.APO`.
    """
    try:
        from agl_algo_apo import APO
    except ImportError as error:
        raise MissingDependencyError("APO", pip="agl-algo-apo") from error

    ensure_endpoint()
    model = model_name()
    return APO(**{"gradient_model": model, "apply_edit_model": model, **options})


def gepa(**options: Any) -> GEPA[dict[str, Any]]:
    """Make GEPA that reflects with the model that the agent runs on.

    Args:
        **options: Options of :class:`~agl_algo_gepa.GEPA`.
    """
    try:
        from agl_algo_gepa import GEPA
    except ImportError as error:
        raise MissingDependencyError("GEPA", pip="agl-algo-gepa") from error

    ensure_endpoint()
    return GEPA(**{"reflection_model": model_name(), **options})
