"""Makes APO and GEPA with the model of this example, for ``apo.toml`` and ``gepa.toml``.

Each needs its plugin: ``pip install ./plugins/agl_prompt_search ./plugins/agl_algo_apo``, or
``./plugins/agl_algo_gepa``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agl_core.plugins import missing_package
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
        raise missing_package("APO", "agl-algo-apo") from error

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
        raise missing_package("GEPA", "agl-algo-gepa") from error

    ensure_endpoint()
    return GEPA(**{"reflection_model": model_name(), **options})
