"""APO and GEPA with the model of this example: what ``apo.toml`` and ``gepa.toml`` name.

Each needs its plugin: ``pip install agl-algo-apo``, ``pip install agl-algo-gepa``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from endpoint import ensure_endpoint, model_name

if TYPE_CHECKING:
    from agl_algo_apo import APO
    from agl_algo_gepa import GEPA

__all__ = ["apo", "gepa"]


def apo(**options: Any) -> APO[dict[str, Any]]:
    """Make APO whose critic and editor are the model that the agent runs on.

    Args:
        **options: As :class:`~agl_algo_apo.APO` takes them.
    """
    from agl_algo_apo import APO

    ensure_endpoint()
    model = model_name()
    return APO(**{"gradient_model": model, "apply_edit_model": model, **options})


def gepa(**options: Any) -> GEPA[dict[str, Any]]:
    """Make GEPA that reflects with the model that the agent runs on.

    Args:
        **options: As :class:`~agl_algo_gepa.GEPA` takes them.
    """
    from agl_algo_gepa import GEPA

    ensure_endpoint()
    return GEPA(**{"reflection_model": model_name(), **options})
