"""The policy: a language model, its optimiser, and what is kept of them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoTokenizer

from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.grpo import Batch, Row, pad_rows, token_logprobs
from agl_algo_grpo.hf.weights import choose_device, choose_dtype, load_model
from agl_core.errors import ConfigError, MissingDependencyError

__all__ = ["Known", "Policy"]

_STATE: Final = "trainer.pt"


@dataclass(frozen=True, slots=True)
class Known:
    """What a policy says of one row; all float32 ``[T]``, on the CPU.

    Attributes:
        raw: Log-probability of each token.
        heated: The same at the temperature of the rollouts.
        entropy: Of the distribution that each token is drawn from, at that temperature.
    """

    raw: Tensor
    heated: Tensor
    entropy: Tensor


class Policy:
    """A model in training. Not thread-safe; may be used from one thread after another.

    Weights are held in float32 and computed with in ``config.dtype``; of a model with LoRA only the
    adapter is. There is no dropout: a ratio of probabilities needs one and the same policy.

    Args:
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.
        folder: Of the model to start from.

    Raises:
        LLMServerError: It cannot be loaded.
        MissingDependencyError: LoRA without PEFT.
    """

    def __init__(self, config: GRPOConfig, folder: str | Path) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._config = config
        self._folder = str(folder)
        self.device = choose_device(config.device)
        self.dtype = choose_dtype(config.dtype, self.device)
        torch.manual_seed(config.seed)
        frozen = config.lora is not None
        self.model = load_model(
            folder, dtype=self.dtype if frozen else torch.float32, device=self.device
        )
        if config.lora is not None:
            self.model = _with_lora(self.model, config)
        if config.gradient_checkpointing:
            _checkpoint_gradients(self.model)
        self._reference: Any = None
        self._trained = [p for p in self.model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._trained, lr=config.learning_rate, weight_decay=config.weight_decay
        )

    @property
    def default_tolerance(self) -> float:
        """Largest difference of log-probabilities between two engines that rounding explains."""
        return 1e-4 if self.dtype == torch.float32 else 0.5

    # -- forward ---------------------------------------------------------------------------------

    def logprobs(self, batch: Batch) -> Tensor:
        """Return the log-probabilities of a batch's tokens, ``[N, T]``, with their gradient."""
        logits = self._logits(self.model, batch)
        return token_logprobs(logits, batch.token_ids, self._config.temperature)

    def logprobs_of(self, rows: Sequence[Row], some: Sequence[int]) -> dict[int, Known]:
        """Return what the policy says of some rows, by their index, without gradient."""
        batch = pad_rows([rows[i] for i in some], torch.ones(len(some)), self.device)
        heat = self._config.temperature
        with torch.no_grad():
            logits = self._logits(self.model, batch)
            raw = token_logprobs(logits, batch.token_ids)
            heated = raw if heat == 1 else token_logprobs(logits, batch.token_ids, heat)
            # The entropy of token t is that of the logits before it.
            spread = (logits[:, :-1].float() / heat).log_softmax(-1)
            entropy = torch.nn.functional.pad(-(spread.exp() * spread).sum(-1), (1, 0))
        found: dict[int, Known] = {}
        for place, i in enumerate(some):
            size = len(rows[i].token_ids)
            parts = [part[place, :size].cpu() for part in (raw, heated, entropy)]
            found[i] = Known(*parts)
        return found

    def reference_logprobs(self, rows: Sequence[Row]) -> list[Tensor]:
        """Return what the starting model says of each row's tokens, ``[T]`` each, on the CPU."""
        from agl_algo_grpo.grpo import micro_batches

        found: dict[int, Tensor] = {}
        lora = self._config.lora is not None
        if not lora and self._reference is None:
            self._reference = load_model(self._folder, dtype=self.dtype, device=self.device)
        with torch.no_grad(), self.model.disable_adapter() if lora else nullcontext():
            for some in micro_batches(rows, self._config.micro_batch_tokens):
                batch = pad_rows([rows[i] for i in some], torch.ones(len(some)), self.device)
                logits = self._logits(self.model if lora else self._reference, batch)
                logprobs = token_logprobs(logits, batch.token_ids, self._config.temperature)
                for place, i in enumerate(some):
                    found[i] = logprobs[place, : len(rows[i].token_ids)].cpu()
        return [found[i] for i in range(len(rows))]

    def _logits(self, model: Any, batch: Batch) -> Tensor:
        half = self.dtype != torch.float32
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=half):
            return model(
                input_ids=batch.token_ids, attention_mask=batch.attention, use_cache=False
            ).logits

    # -- backward --------------------------------------------------------------------------------

    def set_learning_rate(self, step: int) -> float:
        """Set and return the learning rate of a step: it rises linearly, then stays."""
        warmup = self._config.warmup_steps
        rate = self._config.learning_rate * (min(1.0, (step + 1) / warmup) if warmup else 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def step(self) -> float:
        """Apply the gradients and forget them; return their norm before it was clipped.

        Raises:
            FloatingPointError: It is not finite; nothing was applied.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained, self._config.max_grad_norm))
        if norm != norm or norm in (float("inf"), float("-inf")):
            self._optimizer.zero_grad()
            raise FloatingPointError(
                f"the norm of the gradients is {norm}; lower the learning rate"
            )
        self._optimizer.step()
        self._optimizer.zero_grad()
        return norm

    # -- what is kept ----------------------------------------------------------------------------

    def export(self, folder: Path) -> None:
        """Write the weights as a server takes them: a whole model, or a LoRA adapter.

        The folder is there whole or not at all.
        """
        part = _fresh(folder)
        if self._config.lora is not None:
            self.model.save_pretrained(str(part))
        else:
            weights = {k: v.to(self.dtype) for k, v in self.model.state_dict().items()}
            self.model.save_pretrained(str(part), state_dict=weights)
            AutoTokenizer.from_pretrained(self._folder, local_files_only=True).save_pretrained(part)
        _put(part, folder)

    def save(self, folder: Path, step: int) -> None:
        """Write a checkpoint: trained weights, optimiser, random generators, number of steps.

        The folder is there whole or not at all.
        """
        part = _fresh(folder)
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        state = {
            "step": step,
            "weights": {n: p.detach() for n, p in self._named()},
            "optimizer": self._optimizer.state_dict(),
            "torch": torch.get_rng_state(),
            "cuda": cuda,
            "python": list(random.getstate()[1]),
        }
        torch.save(state, part / _STATE)
        _put(part, folder)

    def restore(self, folder: str | Path) -> int:
        """Go on from a checkpoint; return how many steps had been done.

        Raises:
            ConfigError: There is none, or it is of another model.
        """
        path = Path(folder, _STATE)
        if not path.is_file():
            raise ConfigError(f"there is no checkpoint in {folder}", path="algorithm.resume_from")
        state = torch.load(path, map_location="cpu", weights_only=True)
        mine = dict(self._named())
        theirs = state["weights"]
        if {n: p.shape for n, p in mine.items()} != {n: p.shape for n, p in theirs.items()}:
            raise ConfigError(
                f"the checkpoint in {folder} is of another model", path="algorithm.resume_from"
            )
        with torch.no_grad():
            for name, parameter in mine.items():
                parameter.copy_(theirs[name])
        self._optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch"])
        if state["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])
        version, _, gauss = random.getstate()
        random.setstate((version, tuple(state["python"]), gauss))
        return int(state["step"])

    def _named(self) -> list[tuple[str, Any]]:
        return [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]


def _with_lora(model: Any, config: GRPOConfig) -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingDependencyError("GRPO with LoRA", pip="agl-algo-grpo[lora]") from error
    assert config.lora is not None
    options = peft.LoraConfig(
        r=config.lora.r,
        lora_alpha=config.lora.alpha,
        target_modules=config.lora.target_modules,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    return peft.get_peft_model(model, options).eval()


def _checkpoint_gradients(model: Any) -> None:
    """Compute activations again in the backward pass, which Transformers does in training only."""
    name = "activation_checkpointing_enable"  # of Transformers since 5.20 or so
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0


def _fresh(folder: Path) -> Path:
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def _put(part: Path, folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(part, folder)  # noqa: PTH105
