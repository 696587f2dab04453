"""APO with the model of this example: what ``apo.toml`` names as its algorithm."""

from __future__ import annotations

from typing import Any

from agl_algo_apo import APO
from endpoint import ensure_endpoint, model_name

__all__ = ["apo"]


def apo(**options: Any) -> APO[dict[str, Any]]:
    """Make APO whose critic and editor are the model that the agent runs on.

    Args:
        **options: As :class:`~agl_algo_apo.APO` takes them.
    """
    ensure_endpoint()
    model = model_name()
    return APO(**{"gradient_model": model, "apply_edit_model": model, **options})
