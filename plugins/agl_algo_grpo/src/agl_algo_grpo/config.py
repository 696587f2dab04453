"""Options of GRPO; importing this module imports nothing heavy."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["GRPOConfig", "LoRAConfig"]


class LoRAConfig(BaseModel):
    """A low-rank adapter (Hu et al., ICLR 2022), trained in place of all weights."""

    model_config = ConfigDict(extra="forbid")

    r: int = Field(default=16, ge=1, description="Rank")
    alpha: int = Field(default=32, ge=1, description="The update is scaled by alpha / r")
    target_modules: list[str] | Literal["all-linear"] = Field(
        default="all-linear", description="Modules that get an adapter"
    )


class GRPOConfig(BaseModel):
    """Options of :class:`~agl_algo_grpo.GRPO`. Durations are in seconds."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str = Field(description="Folder (or hub id) of the model to start from")
    # -- rollouts
    steps: int = Field(default=100, ge=1, description="Training steps")
    tasks_per_step: int = Field(default=8, ge=1, description="Tasks (groups) in a step")
    group_size: int = Field(default=8, ge=2, description="Rollouts of each task in a step")
    temperature: float = Field(default=1.0, gt=0, description="Temperature of the rollouts")
    max_tokens: int | None = Field(
        default=None, ge=1, description="Limit of one answer, where the agent sets none"
    )
    # -- training
    advantage: Literal["group", "group-mean", "rloo"] = Field(
        default="group",
        description="group: (r - mean) / std; group-mean: r - mean; rloo: r - mean of the others",
    )
    loss: Literal["token", "rollout", "constant"] = Field(
        default="token",
        description="token: mean over tokens; rollout: mean over rollouts of their tokens' means; "
        "constant: sum over tokens / (rollouts * loss_tokens)",
    )
    loss_tokens: int = Field(default=1024, ge=1, description="Divisor of loss='constant'")
    clip_low: float = Field(
        default=0.2, ge=0, lt=1, description="Ratios are clipped at 1 - clip_low"
    )
    clip_high: float = Field(default=0.2, ge=0, description="Ratios are clipped at 1 + clip_high")
    clip_dual: float | None = Field(
        default=None, gt=1, description="Bound of the ratio where the advantage is negative"
    )
    kl: float = Field(default=0.0, ge=0, description="Weight of the KL to the starting model")
    epochs: int = Field(default=1, ge=1, description="Passes over a step's rollouts")
    minibatches: int = Field(default=1, ge=1, description="Updates in a pass")
    learning_rate: float = Field(default=1e-6, gt=0)
    warmup_steps: int = Field(default=0, ge=0, description="Steps in which the learning rate rises")
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    micro_batch_tokens: int = Field(
        default=16_384, ge=1, description="Limit of tokens in one forward pass, padding included"
    )
    lora: LoRAConfig | None = Field(default=None, description="Train an adapter only")
    device: str = Field(default="auto", description="auto: a GPU if there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="Computation type; auto: bfloat16 on a GPU, else float32"
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Recompute activations to save memory"
    )
    threads: int | None = Field(default=None, ge=1, description="PyTorch's threads on a CPU")
    # -- rollouts that cannot be trained on
    on_failure: Literal["drop", "penalise"] = Field(
        default="drop",
        description="drop: leave out failed rollouts; penalise: train with failure_reward",
    )
    failure_reward: float = Field(default=0.0)
    retries: int = Field(default=1, ge=0, description="How often an unusable rollout is repeated")
    on_overlong: Literal["keep", "drop", "penalise"] = Field(
        default="keep", description="What to do with a rollout that has a truncated answer"
    )
    overlong_reward: float = Field(default=0.0)
    max_row_tokens: int = Field(
        default=8192, ge=2, description="Rollouts with a longer row are dropped"
    )
    min_group_size: int | None = Field(
        default=None,
        ge=2,
        description="Groups with fewer usable rollouts are dropped; None: incomplete groups are",
    )
    rollout_timeout: float = Field(default=600.0, gt=0, description="Limit of one attempt")
    step_timeout: float = Field(default=3600.0, gt=0, description="Limit of a step's rollouts")
    logprob_tolerance: float | None = Field(
        default=None,
        gt=0,
        description="Largest tolerated difference between the trainer's and the server's "
        "log-probabilities; None: 1e-4 in float32, 0.5 in bfloat16",
    )
    on_mismatch: Literal["warn", "raise"] = Field(
        default="warn", description="What to do about a larger difference"
    )
    # -- the LLM server
    server: Any = Field(
        default=None,
        description="LLM server: a name, or a table with a type and options; None: the trainer's "
        "llm_server, or hf if it has none",
    )
    resource: str = Field(default="main_llm", description="Name of the model among the resources")
    check_interval: float = Field(
        default=5.0, gt=0, description="Seconds between two health checks of the server"
    )
    hang_timeout: float = Field(
        default=120.0, gt=0, description="A server that does not reply for so long is restarted"
    )
    max_server_restarts: int = Field(default=3, ge=0, description="Limit per step")
    # -- files
    output_dir: str | None = Field(
        default=None, description="Folder of metrics and checkpoints; None: agl-runs/<run>"
    )
    checkpoint_every: int = Field(default=10, ge=1, description="Steps between checkpoints")
    keep_checkpoints: int = Field(default=2, ge=1, description="Number of checkpoints to keep")
    resume_from: str | None = Field(
        default=None, description="Checkpoint folder, for a run that the store does not know"
    )
    validate_every: int = Field(
        default=0, ge=0, description="Steps between validations; 0: only at the end"
    )
    seed: int = Field(default=0, description="Seed of the order of tasks and minibatches")

    @model_validator(mode="after")
    def _check_sizes(self) -> GRPOConfig:
        if self.min_group_size is not None and self.min_group_size > self.group_size:
            raise ValueError(
                f"min_group_size ({self.min_group_size}) is above group_size ({self.group_size})"
            )
        if self.minibatches > self.tasks_per_step * self.group_size:
            raise ValueError("there are more minibatches than rollouts in a step")
        return self
