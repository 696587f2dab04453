"""The policy: a language model with its optimiser, its checkpoints and its exports."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoTokenizer

from agl_algo_grpo.batches import Batch, Row, collate, forward_passes, token_logprobs
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.files import make_part, rename, save_model
from agl_core.errors import ConfigError, MissingDependencyError
from agl_server_hf import choose_device, choose_dtype, load_model

__all__ = ["Policy", "RowLogprobs"]

_STATE: Final = "trainer.pt"


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """The policy's values for one row; all float32 ``[T]``, on the CPU.

    Attributes:
        raw: Log-probability of each token at temperature 1.
        tempered: Log-probability of each token at the rollouts' temperature.
        entropy: Entropy of the distribution of each token at the rollouts' temperature.
    """

    raw: Tensor
    tempered: Tensor
    entropy: Tensor


class Policy:
    """A model in training. Not thread-safe; may be used from one thread after another.

    Trained weights are float32 and the computation is in ``config.dtype``. With LoRA only the
    adapter is trained; the model's own weights are in ``config.dtype``. There is no dropout: both
    probabilities of a ratio must come from the same policy.

    Args:
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.
        folder: Folder of the model to start from.

    Raises:
        LLMServerError: The model cannot be loaded.
        MissingDependencyError: LoRA needs PEFT, which is not installed.
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
        """Largest difference of log-probabilities that rounding explains."""
        return 1e-4 if self.dtype == torch.float32 else 0.5

    # -- forward ---------------------------------------------------------------------------------

    def logprobs(self, batch: Batch) -> Tensor:
        """Return the log-probabilities of a batch's tokens, ``[B, T]``, with gradient."""
        logits = self._logits(self.model, batch)
        return token_logprobs(logits, batch.token_ids, self._config.temperature)

    def evaluate(self, rows: Sequence[Row]) -> list[RowLogprobs]:
        """Return the policy's values for each row, without gradient."""
        temperature = self._config.temperature
        found: dict[int, RowLogprobs] = {}
        with torch.no_grad():
            for batch in self._batches(rows):
                logits = self._logits(self.model, batch)
                raw = token_logprobs(logits, batch.token_ids)
                tempered = raw
                if temperature != 1:
                    tempered = token_logprobs(logits, batch.token_ids, temperature)
                # Token t is drawn from the distribution of the logits at t - 1.
                spread = (logits[:, :-1].float() / temperature).log_softmax(-1)
                entropy = torch.nn.functional.pad(-(spread.exp() * spread).sum(-1), (1, 0))
                parts = [batch.split(values) for values in (raw, tempered, entropy)]
                found |= {i: RowLogprobs(*(part[i] for part in parts)) for i in batch.places}
        return [found[i] for i in range(len(rows))]

    def reference_logprobs(self, rows: Sequence[Row]) -> list[Tensor]:
        """Return the starting model's log-probabilities of each row, ``[T]`` each, on the CPU."""
        found: dict[int, Tensor] = {}
        lora = self._config.lora is not None
        if not lora and self._reference is None:
            self._reference = load_model(self._folder, dtype=self.dtype, device=self.device)
        with torch.no_grad(), self.model.disable_adapter() if lora else nullcontext():
            for batch in self._batches(rows):
                logits = self._logits(self.model if lora else self._reference, batch)
                logprobs = token_logprobs(logits, batch.token_ids, self._config.temperature)
                found |= batch.split(logprobs)
        return [found[i] for i in range(len(rows))]

    def _batches(self, rows: Sequence[Row]) -> Iterator[Batch]:
        config = self._config
        for bins in forward_passes(rows, config.micro_batch_tokens, pack=config.pack):
            yield collate(rows, bins, device=self.device)

    def _logits(self, model: Any, batch: Batch) -> Tensor:
        half = self.dtype != torch.float32
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=half):
            return model(**batch.inputs, use_cache=False).logits

    # -- backward --------------------------------------------------------------------------------

    def set_learning_rate(self, step: int) -> float:
        """Set and return the learning rate of a step: linear warm-up, then constant."""
        warmup = self._config.warmup_steps
        rate = self._config.learning_rate * (min(1.0, (step + 1) / warmup) if warmup else 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def step(self) -> float:
        """Apply the gradients and clear them; return their norm before clipping.

        Raises:
            FloatingPointError: The norm is not finite; nothing was applied.
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

    # -- files -----------------------------------------------------------------------------------

    def export(self, folder: Path) -> None:
        """Write the weights in the form that a server loads: a whole model, or a LoRA adapter.

        The folder appears complete or not at all.
        """
        part = make_part(folder)
        if self._config.lora is not None:
            self.model.save_pretrained(str(part))
        else:
            save_model(self.model, part, self.dtype)
            AutoTokenizer.from_pretrained(self._folder, local_files_only=True).save_pretrained(part)
        rename(part, folder)

    def save(self, folder: Path, step: int) -> None:
        """Write a checkpoint: trained weights, optimiser, random generators, number of steps.

        The folder appears complete or not at all.
        """
        part = make_part(folder)
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        state = {
            "step": step,
            "weights": {n: p.detach() for n, p in self._trained_parameters()},
            "optimizer": self._optimizer.state_dict(),
            "torch": torch.get_rng_state(),
            "cuda": cuda,
            "python": list(random.getstate()[1]),
        }
        torch.save(state, part / _STATE)
        rename(part, folder)

    def restore(self, folder: str | Path) -> int:
        """Load a checkpoint; return the number of steps done before it.

        Raises:
            ConfigError: The folder holds no checkpoint, or one of another model.
        """
        path = Path(folder, _STATE)
        if not path.is_file():
            raise ConfigError(f"{folder} holds no checkpoint", path="algorithm.resume_from")
        state = torch.load(path, map_location="cpu", weights_only=True)
        parameters = dict(self._trained_parameters())
        saved = state["weights"]
        if {n: p.shape for n, p in parameters.items()} != {n: p.shape for n, p in saved.items()}:
            raise ConfigError(
                f"the checkpoint in {folder} belongs to another model",
                path="algorithm.resume_from",
            )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(saved[name])
        self._optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch"])
        if state["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])
        version, _, gauss = random.getstate()
        random.setstate((version, tuple(state["python"]), gauss))
        return int(state["step"])

    def _trained_parameters(self) -> list[tuple[str, Any]]:
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
    """Recompute activations in the backward pass, to save memory.

    Transformers does so in training mode only, so the dropout of that mode is set to 0.
    """
    name = "activation_checkpointing_enable"  # Transformers renamed it around 5.20
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
