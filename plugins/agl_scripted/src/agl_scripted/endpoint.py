"""The model of an example: the real one that environment variables name, or a scripted one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agl_scripted.server import Script, ScriptedModels

__all__ = ["ModelEndpoint", "real_or_scripted"]

SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """A model and where it is.

    Attributes:
        provider: ``openai`` or ``anthropic``.
        model: Its name there.
        base_url: Base URL; None is the provider's own.
        api_key: Key; None leaves it to the provider.
    """

    provider: str
    model: str
    base_url: str | None
    api_key: str | None

    @property
    def is_simulated(self) -> bool:
        """Whether a script answers."""
        return self.model == SIMULATED

    def behind_proxy(self) -> dict[str, Any]:
        """Return the ``llm_proxy`` of a trainer whose agents call this model."""
        params = {
            "model": f"{self.provider}/{self.model}",
            "api_base": self.base_url,
            "api_key": self.api_key,
        }
        models = [{"model_name": self.model, "litellm_params": params}]
        return {"type": "direct", "model_list": models}


@contextmanager
def real_or_scripted(
    script: Script,
    default_model: str,
    *,
    provider: str = "openai",
    environ: Mapping[str, str] = os.environ,
) -> Iterator[ModelEndpoint]:
    """Yield the model of the environment or, without one, a scripted model.

    For OpenAI, ``OPENAI_API_KEY`` or ``OPENAI_BASE_URL`` selects the real model and
    ``OPENAI_MODEL`` names it; the variables of another provider start with its name. The scripted
    model serves until the block ends, and a line on standard error says that it is simulated.

    Args:
        script: Answers of the scripted model.
        default_model: Name of the real model if no variable names it.
        provider: ``openai`` or ``anthropic``.
        environ: Environment variables.
    """
    prefix = provider.upper()
    base_url, key = environ.get(f"{prefix}_BASE_URL"), environ.get(f"{prefix}_API_KEY")
    if base_url or key:
        model = environ.get(f"{prefix}_MODEL") or default_model
        yield ModelEndpoint(provider, model, base_url or None, key or None)
        return
    print(
        f"No {prefix}_API_KEY or {prefix}_BASE_URL: a SIMULATED model answers (rules, not a "
        "language model).",
        file=sys.stderr,
    )
    with ScriptedModels(script, models=[SIMULATED]) as models:
        yield ModelEndpoint(provider, SIMULATED, models.url, None)
