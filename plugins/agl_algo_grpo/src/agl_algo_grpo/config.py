"""What can be configured; importing it imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["GRPOConfig", "HFServerConfig", "LoRAConfig"]


class HFServerConfig(BaseModel):
    """Options of :class:`~agl_algo_grpo.hf.HFServer`. Durations are seconds."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    path: str = Field(min_length=1, description="Folder of the model and its tokenizer")
    model: str | None = Field(
        default=None, min_length=1, description="Name that calls ask for; None is the folder's"
    )
    host: str = Field(default="127.0.0.1", description="Interface")
    port: int = Field(default=0, ge=0, le=65535, description="Port; 0 takes a free one")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, …")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="auto: bfloat16 on a GPU, else float32"
    )
    max_model_len: int | None = Field(
        default=None, ge=2, description="Most tokens of prompt and answer; None asks the model"
    )
    max_batch_size: int = Field(default=64, ge=1, description="Most sequences at a time")
    chat_template: str | None = Field(
        default=None, description="Jinja text in place of the tokenizer's"
    )
    threads: int | None = Field(default=None, ge=1, description="Threads of PyTorch on a CPU")
    seed: int | None = Field(default=None, description="Of what is sampled")
    python: str | None = Field(
        default=None, description="Interpreter, if torch is in another environment"
    )
    start_timeout: float = Field(default=300.0, gt=0)
    update_timeout: float = Field(default=300.0, gt=0)
    log_file: str | None = Field(default=None, description="Where its log goes; None keeps none")

    @property
    def served_name(self) -> str:
        """Name that calls ask for."""
        return self.model or Path(self.path).absolute().name


class LoRAConfig(BaseModel):
    """A low-rank adapter (Hu et al., ICLR 2022), trained in place of all weights."""

    model_config = ConfigDict(extra="forbid")

    r: int = Field(default=16, ge=1, description="Rank")
    alpha: int = Field(default=32, ge=1, description="The update is scaled by alpha / r")
    target_modules: list[str] | Literal["all-linear"] = Field(
        default="all-linear", description="Which modules get one"
    )


class GRPOConfig(BaseModel):
    """Options of :class:`~agl_algo_grpo.GRPO`; its keyword arguments. Durations are seconds."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str = Field(description="Folder (or hub id) of the model to start from")
    # -- what is sampled
    steps: int = Field(default=100, ge=1, description="Training steps")
    tasks_per_step: int = Field(default=8, ge=1, description="Tasks (groups) in a step")
    group_size: int = Field(default=8, ge=2, description="Rollouts of each task in a step")
    temperature: float = Field(default=1.0, gt=0, description="Of the rollouts")
    max_tokens: int | None = Field(
        default=None, ge=1, description="Longest answer of one call, if the agent does not say"
    )
    # -- what is computed
    advantage: Literal["group", "group-mean", "rloo"] = Field(
        default="group",
        description="group: (r - mean) / std; group-mean: r - mean; rloo: r - mean of the others",
    )
    loss: Literal["token", "rollout", "constant"] = Field(
        default="token",
        description="token: mean over tokens; rollout: mean over rollouts of their tokens' means; "
        "constant: sum over tokens / (rollouts * loss_tokens)",
    )
    loss_tokens: int = Field(default=1024, ge=1, description="The constant of loss='constant'")
    clip_low: float = Field(default=0.2, ge=0, lt=1, description="Ratios are clipped at 1 - this")
    clip_high: float = Field(default=0.2, ge=0, description="… and at 1 + this")
    clip_dual: float | None = Field(
        default=None, gt=1, description="Bound of the ratio where the advantage is negative"
    )
    kl: float = Field(default=0.0, ge=0, description="Weight of the KL to the starting model")
    epochs: int = Field(default=1, ge=1, description="Passes over the rollouts of a step")
    minibatches: int = Field(default=1, ge=1, description="Updates in a pass")
    learning_rate: float = Field(default=1e-6, gt=0)
    warmup_steps: int = Field(default=0, ge=0, description="Steps of rising learning rate")
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    micro_batch_tokens: int = Field(
        default=16_384, ge=1, description="Most tokens, padding included, in one forward pass"
    )
    lora: LoRAConfig | None = Field(default=None, description="Train an adapter only")
    device: str = Field(default="auto", description="auto: a GPU if there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="Of the computation; auto: bfloat16 on a GPU, else float32"
    )
    gradient_checkpointing: bool = Field(default=False, description="Trade time for memory")
    threads: int | None = Field(default=None, ge=1, description="Threads of PyTorch on a CPU")
    # -- what is done about rollouts that cannot be trained on
    on_failure: Literal["drop", "penalise"] = Field(
        default="drop",
        description="What failed for good is left out, or trained on with failure_reward",
    )
    failure_reward: float = Field(default=0.0)
    retries: int = Field(
        default=1, ge=0, description="How often a rollout that cannot be used is made anew"
    )
    on_overlong: Literal["keep", "drop", "penalise"] = Field(
        default="keep", description="What to do with a rollout one of whose answers was cut off"
    )
    overlong_reward: float = Field(default=0.0)
    max_row_tokens: int = Field(
        default=8192, ge=2, description="Rollouts with a longer row are dropped"
    )
    min_group_size: int | None = Field(
        default=None,
        ge=2,
        description="Groups with fewer usable rollouts are dropped; None: with any missing",
    )
    rollout_timeout: float = Field(default=600.0, gt=0, description="Of one attempt")
    step_timeout: float = Field(default=3600.0, gt=0, description="Of all rollouts of a step")
    logprob_tolerance: float | None = Field(
        default=None,
        gt=0,
        description="Largest difference of the trainer's and the server's log-probabilities that "
        "is no mismatch; None: 1e-4 in float32, 0.5 in bfloat16",
    )
    on_mismatch: Literal["warn", "raise"] = Field(
        default="warn", description="What to do about a larger one"
    )
    # -- where the model is served
    server: Any = Field(
        default=None,
        description="The LLM server: a name, or a table with a type and options; None: the "
        "trainer's llm_server, or else hf",
    )
    resource: str = Field(default="main_llm", description="Name of the model among the resources")
    check_interval: float = Field(
        default=5.0, gt=0, description="Between two questions to the server whether it answers"
    )
    hang_timeout: float = Field(
        default=120.0, gt=0, description="A server that answers nothing for so long is restarted"
    )
    max_server_restarts: int = Field(default=3, ge=0, description="In one step")
    # -- what is kept
    output_dir: str | None = Field(
        default=None, description="Metrics, checkpoints; None: agl-runs/<name of the run>"
    )
    checkpoint_every: int = Field(default=10, ge=1, description="Steps between checkpoints")
    keep_checkpoints: int = Field(default=2, ge=1, description="How many are kept")
    resume_from: str | None = Field(
        default=None, description="A checkpoint's folder, for a run that the store does not know"
    )
    validate_every: int = Field(
        default=0, ge=0, description="Steps between validations; 0: only at the end"
    )
    seed: int = Field(default=0, description="Of the order of tasks and of minibatches")

    @model_validator(mode="after")
    def _fits_together(self) -> GRPOConfig:
        if self.min_group_size is not None and self.min_group_size > self.group_size:
            raise ValueError(
                f"min_group_size ({self.min_group_size}) is above group_size ({self.group_size})"
            )
        if self.minibatches > self.tasks_per_step * self.group_size:
            raise ValueError("there are more minibatches than rollouts in a step")
        return self
