"""The API keys that agents send to proxies.

A proxy that requires tokens accepts an agent's calls under the URL of its own attempt only with
that attempt's token. An algorithm cannot set it: it gives the same resources to every attempt. So
the runner adds it to each :class:`~agl_core.types.ProxyLLM` that has no key yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.types import ProxyLLM

if TYPE_CHECKING:
    from agl_core.proxy import LLMProxy
    from agl_core.store import LightningStore
    from agl_core.types import AttemptedRollout, NamedResources


def with_keys(
    resources: NamedResources,
    rollout: AttemptedRollout,
    store: LightningStore,
    proxy: LLMProxy | None,
) -> NamedResources:
    """Return resources whose proxied models carry the attempt's key; the originals are unchanged.

    Args:
        resources: Resources of the attempt.
        rollout: The rollout and the attempt.
        store: The store that the rollout was claimed from; its server may issue attempt tokens.
        proxy: The run's own proxy, which may require other tokens than the store.
    """
    keyless = {
        name: resource
        for name, resource in resources.items()
        if isinstance(resource, ProxyLLM) and resource.api_key is None
    }
    if not keyless:
        return resources
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    key = None if proxy is None else proxy.api_key_for(*ids)
    if key is None:
        key = store.attempt_token(*ids)
    if key is None:
        return resources
    changed = {name: llm.model_copy(update={"api_key": key}) for name, llm in keyless.items()}
    return {**resources, **changed}
