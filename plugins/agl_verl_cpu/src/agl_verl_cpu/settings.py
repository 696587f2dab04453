"""Settings of verl that a CPU needs, and the environment that selects the platform."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ENVIRONMENT", "FORCED", "SEPARATE", "cpu_defaults"]

ENVIRONMENT: Final = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "agl_verl_cpu.platform",
}
"""Must be set before verl is imported, in this process and in every worker."""

_ROLLOUT: Final = "actor_rollout_ref.rollout"
FORCED: Final = {
    f"{_ROLLOUT}.name": "agl_transformers",
    f"{_ROLLOUT}.checkpoint_engine.custom_backend_module": "agl_verl_cpu.weights",
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "critic.strategy": "fsdp2",
}
"""Settings without an alternative on a CPU."""

SEPARATE: Final = {f"{_ROLLOUT}.checkpoint_engine.backend": "agl_object_store"}
"""Settings to add to ``FORCED`` if the inference servers have devices of their own."""

_FP32: Final = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
_ENGINE: Final = {"+mixed_precision": _FP32, "use_torch_compile": False}


def cpu_defaults() -> dict[str, Any]:
    """Return the settings that differ from verl's defaults; a user's configuration overrides them.

    Everything is in fp32, because bf16 changes a CPU's log-probabilities by about 3e-2.
    """
    model = {
        "use_remove_padding": False,  # needs flash attention
        "enable_gradient_checkpointing": False,
        "override_config": {"+attn_implementation": "sdpa"},
    }
    return {
        "actor_rollout_ref": {
            "model": dict(model),
            "actor": {"use_torch_compile": False, "fsdp_config": dict(_ENGINE)},
            "ref": {"use_torch_compile": False, "fsdp_config": dict(_ENGINE)},
            "rollout": {"tensor_model_parallel_size": 1},
        },
        "critic": {"model": dict(model), "fsdp": dict(_ENGINE)},
        "data": {"dataloader_num_workers": 0},
        "reward": {"num_workers": 1},
        "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
        "trainer": {"n_gpus_per_node": 1, "nnodes": 1},
        # Actors mostly wait, so more of them than cores must be allowed to start.
        "ray_kwargs": {"ray_init": {"num_cpus": 16, "+num_gpus": 4, "+include_dashboard": False}},
    }
