"""Options of GRPO; importing this module imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from agl_core.plugins import ComponentConfig
from agl_credit import CreditConfig

__all__ = ["CreditConfig", "GRPOConfig", "LoRAConfig", "PolicyConfig", "TrainingOptions"]

_NAME: Final = re.compile("[A-Za-z0-9_-]+")
M = TypeVar("M", bound=BaseModel)


class LoRAConfig(BaseModel):
    """A low-rank adapter (Hu et al., ICLR 2022), trained in place of all weights."""

    model_config = ConfigDict(extra="forbid")

    r: int = Field(default=16, ge=1)
    """Rank."""
    alpha: int = Field(default=32, ge=1)
    """The update is scaled by alpha / r."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Modules that get an adapter."""


class TrainingOptions(ComponentConfig):
    """Options of one policy: what it is trained on, and how. Durations are in seconds."""

    reward: str | None = Field(default=None, min_length=1)
    """Name of the number to train on, of a reward that has several
    (``emit_reward({"a": 0.5, "b": 1.0}, primary_key="a")``); None: the first."""
    # -- rollouts
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of the rollouts."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Limit of one answer, where the agent sets none."""
    # -- training
    importance_cap: float = Field(default=2.0, ge=1)
    """Bound of the weight that corrects a token for what sampled it (truncated importance
    sampling): with overlap older weights, in bfloat16 a server that rounds differently."""
    advantage: Literal["group", "group-mean", "rloo"] = "group"
    """group: (r - mean) / std; group-mean: r - mean; rloo: r - mean of the others."""
    loss: Literal["token", "rollout", "constant"] = "token"
    """token: mean over tokens; rollout: mean over rollouts of their tokens' means; constant: sum
    over tokens / (rollouts * loss_tokens)."""
    loss_tokens: int = Field(default=1024, ge=1)
    """Divisor of loss='constant'."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """Ratios are clipped at 1 - clip_low."""
    clip_high: float = Field(default=0.2, ge=0)
    """Ratios are clipped at 1 + clip_high."""
    clip_dual: float | None = Field(default=None, gt=1)
    """Bound of the ratio where the advantage is negative."""
    ratio: Literal["token", "sequence"] = "token"
    """token: each token has its own ratio; sequence: the geometric mean of its row's ratios
    (GSPO), which wants far tighter bounds, e.g. ``clip_low=3e-4, clip_high=4e-4``."""
    clip_cov: float = Field(default=0.0, ge=0, le=1)
    """Share of tokens that get no gradient because they would lower the entropy most (Clip-Cov);
    the paper uses 2e-4."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL to the starting model."""
    epochs: int = Field(default=1, ge=1)
    """Passes over a step's rollouts."""
    minibatches: int = Field(default=1, ge=1)
    """Updates in a pass."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Learning rate of AdamW after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which the learning rate rises."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm."""
    micro_batch_tokens: int = Field(default=16_384, ge=1)
    """Limit of tokens in one forward pass, padding included. It falls when memory runs out."""
    chunk_tokens: int = Field(default=1024, ge=1)
    """Tokens whose logits are in memory at a time: 4 bytes for each of them and each word of the
    vocabulary."""
    lora: LoRAConfig | None = None
    """Options of a LoRA adapter, which is then trained instead of all weights."""
    device: str = "auto"
    """PyTorch's device; ``auto`` is a GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the computation; ``auto`` is bfloat16 on a GPU, else float32."""
    pack: bool = False
    """Put several rows into one sequence in place of padding; needs a model whose attention
    Transformers can mask between rows."""
    share_prefixes: bool = True
    """Compute the common beginning of rows once, such as the prompt of a group, if the model's
    attention takes a mask (not with flash attention, sliding windows shorter than max_row_tokens,
    or layers with a state) and at least a quarter of the computation is saved."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Recompute activations to save memory; ``auto``: when one row alone does not fit."""
    offload_optimizer: bool = False
    """Keep the states of AdamW, 8 bytes per trained weight, on the CPU between its steps."""
    # -- rollouts that cannot be trained on
    on_failure: Literal["drop", "penalise"] = "drop"
    """drop: leave out failed rollouts; penalise: train with failure_reward."""
    failure_reward: float | None = None
    """Reward of failed rollouts with ``on_failure="penalise"``; None: below the others of their
    group, or the lower end of the trainer's ``reward_range``."""
    on_overlong: Literal["keep", "drop", "penalise"] = "keep"
    """What to do with a rollout that has a truncated answer."""
    overlong_reward: float | None = None
    """Reward of truncated rollouts with ``on_overlong="penalise"``; None: as for failed ones."""
    max_row_tokens: int = Field(default=8192, ge=2)
    """Rollouts with a longer row are dropped."""
    logprob_tolerance: float | None = Field(default=None, gt=0)
    """Largest tolerated difference between the trainer's and the server's log-probabilities;
    None: 1e-4 in float32, 0.5 in bfloat16."""
    on_mismatch: Literal["warn", "raise"] = "warn"
    """What to do about a larger difference: warn, or stop the run."""
    # -- files
    server: Any = None
    """LLM server: a name, or a table with a type and options; None: the trainer's llm_server, or
    hf if it has none."""
    resume_from: str | Path | None = None
    """Checkpoint folder, for a run that the store does not know."""


class PolicyConfig(TrainingOptions):
    """Options of one of several policies. Those that are not set are the options of GRPO."""

    model: str | Path = Field(kw_only=False)
    """Folder (or hub id) of the model to start from."""


class GRPOConfig(TrainingOptions):
    """Options of :class:`~agl_algo_grpo.GRPO`. Durations are in seconds."""

    model: str | Path | Mapping[str, Any] = Field(kw_only=False)
    """Folder (or hub id) of the model to start from; for several policies a table of
    :class:`PolicyConfig` (or of folders) by the names of their resources."""
    # -- rollouts
    steps: int = Field(default=100, ge=1)
    """Training steps."""
    tasks_per_step: int = Field(default=8, ge=1)
    """Tasks (groups) in a step."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts of each task in a step."""
    resample: int = Field(default=0, ge=0)
    """How often groups without an advantage (their rewards are all equal) are replaced before
    training starts, by groups of tasks drawn from the whole dataset (the dynamic sampling of DAPO).
    """
    overlap: int = Field(default=0, ge=0, le=1)
    """1: the next step's rollouts run while this one trains, with weights that are one update
    older; 0: rollouts and training alternate."""
    partial_rollouts: bool = False
    """With overlap: publish weights while rollouts run; their next calls are answered by them."""
    drain_timeout: float = Field(default=60.0, gt=0)
    """Seconds that model calls may go on once new weights are ready; then they are aborted. With
    partial_rollouts calls are in flight at each publication, so lower values favour short answers:
    rollouts with longer ones fail and are repeated."""
    retries: int = Field(default=1, ge=0)
    """How often an unusable rollout is repeated."""
    min_group_size: int | None = Field(default=None, ge=2)
    """Groups with fewer usable rollouts are dropped; None: incomplete groups are."""
    credit: CreditConfig = CreditConfig()
    """How the reward is shared among the calls of a rollout: a type, or a table of it and options.
    """
    rollout_timeout: float = Field(default=600.0, gt=0)
    """Seconds that one attempt of a rollout may take."""
    step_timeout: float = Field(default=3600.0, gt=0)
    """Seconds that one batch of rollouts may take: those of a step, or its repetitions, replaced
    groups or forks."""
    seed: int = 0
    """Seed of the order of tasks and minibatches."""
    # -- the LLM server
    resource: str = "main_llm"
    """Name of the model among the resources."""
    check_interval: float = Field(default=5.0, gt=0)
    """Seconds between two health checks of the server."""
    hang_timeout: float = Field(default=120.0, gt=0)
    """Seconds without a reply after which the server is restarted."""
    max_server_restarts: int = Field(default=3, ge=0)
    """Limit of the server's restarts in one step."""
    threads: int | None = Field(default=None, ge=1)
    """PyTorch's threads on a CPU; None: all cores that it may use, or ``OMP_NUM_THREADS``."""
    # -- files
    output_dir: str | Path | None = None
    """Folder of metrics and checkpoints; None is ``agl-runs/`` and the run's name."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of checkpoints to keep."""
    validate_every: int = Field(default=0, ge=0)
    """Steps between validations; 0: only at the end."""

    @field_validator("model")
    @classmethod
    def _read_policies(
        cls, model: str | Path | Mapping[str, Any]
    ) -> str | Path | Mapping[str, PolicyConfig]:
        if not isinstance(model, Mapping):
            return model
        policies: dict[str, PolicyConfig] = {}
        for name, options in model.items():
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"a policy's name is made of letters, digits, _ and -, not {name!r}"
                )
            if isinstance(options, (str, Path)):
                options = {"model": options}
            policies[name] = _validated(PolicyConfig, options, name)
        if not policies:
            raise ValueError("there are no policies")
        return policies

    @model_validator(mode="after")
    def _check_sizes(self) -> GRPOConfig:
        if self.min_group_size is not None and self.min_group_size > self.group_size:
            raise ValueError(
                f"min_group_size ({self.min_group_size}) is above group_size ({self.group_size})"
            )
        if self.partial_rollouts and not self.overlap:
            raise ValueError("partial_rollouts needs overlap=1")
        if self.overlap and self.temperature != 1:
            raise ValueError(
                "overlap needs temperature=1: servers report log-probabilities at temperature 1, "
                "and weights of an earlier step cannot be asked again"
            )
        if self.credit.type == "forked" and self.loss == "rollout":
            raise ValueError(
                "credit='forked' needs loss='token' or 'constant': a fork has only a part of a "
                "rollout's tokens"
            )
        if self.credit.type == "forked" and self.seed < 0:
            raise ValueError("credit='forked' needs a seed of at least 0")
        if self.credit.type != "group" and self.advantage == "rloo":
            raise ValueError(
                f"advantage='rloo' needs credit='group', not {self.credit.type!r}, which has "
                "'group' and 'group-mean'"
            )
        if self.minibatches > self.tasks_per_step * self.group_size:
            raise ValueError("there are more minibatches than rollouts in a step")
        return self

    @model_validator(mode="after")
    def _check_policies(self) -> GRPOConfig:
        if isinstance(self.model, Mapping):
            if self.resume_from is not None:
                raise ValueError("resume_from is an option of each policy if there are several")
            self.policies()
        return self

    @property
    def is_single(self) -> bool:
        """Whether there is one policy, whose options these are."""
        return not isinstance(self.model, Mapping)

    def policies(self) -> dict[str, GRPOConfig]:
        """Return the options of each policy, by the name of its resource."""
        if not isinstance(self.model, Mapping):
            return {self.resource: self}
        common = {name: getattr(self, name) for name in self.model_fields_set}
        policies: dict[str, GRPOConfig] = {}
        for name, policy in self.model.items():
            own = {option: getattr(policy, option) for option in policy.model_fields_set}
            policies[name] = _validated(GRPOConfig, {**common, **own, "resource": name}, name)
        return policies


def _validated(kind: type[M], options: Any, name: str) -> M:
    """Return the options of a policy; the message of an error fits on one line.

    Raises:
        ValueError: An option is wrong.
    """
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, (name, *first["loc"])))
        raise ValueError(f"{path}: {first['msg'].removeprefix('Value error, ')}") from error
