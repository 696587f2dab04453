"""The policy: a language model with its optimiser, its checkpoints and its exports."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from transformers import AutoTokenizer

from agl_algo_grpo.batches import Batch, Pass, Row, collate
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.files import make_part, rename, save_model
from agl_algo_grpo.head import Head, TokenValues
from agl_algo_grpo.micro_batches import MicroBatches
from agl_algo_grpo.optimizer import Optimizer
from agl_algo_grpo.prefixes import balance
from agl_core.errors import ConfigError
from agl_core.plugins import missing_package
from agl_server_hf import choose_device, choose_dtype, default_threads, load_model

__all__ = ["Policy", "RowLogprobs"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_STATE: Final = "trainer.pt"
_MOST_REFUSED: Final = 5
"""Updates in a row whose gradients are not finite, after which a run stops: single rows overflow
now and then, but weights that have diverged stay so."""


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """The policy's values for one row; all float32 ``[T]``, on the CPU.

    They are 0 where the policy did not sample the token, and for the first token.

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
        # Without overlap the server waits while the model is trained.
        torch.set_num_threads(config.threads or default_threads(shared=False))
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
        self._head = Head(self.model, self.dtype)
        self._reference: Head | None = None
        self._checkpoints = False
        self._refused = 0
        """Number of the last updates in a row that were not applied."""
        if config.gradient_checkpointing is True:
            self._checkpoint_gradients()
        sharing = config.share_prefixes and self._shares_prefixes()
        self.micro_batches = MicroBatches(
            config.micro_batch_tokens,
            pack=config.pack,
            balance=balance(self.model) if sharing else None,
            last_resort=self._save_memory,
        )
        self._trained = [p for p in self.model.parameters() if p.requires_grad]
        self._optimizer = Optimizer(
            self._trained,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            offload=config.offload_optimizer,
        )

    @property
    def default_tolerance(self) -> float:
        """Largest difference of log-probabilities that rounding explains."""
        return 1e-4 if self.dtype == torch.float32 else 0.5

    # -- forward ---------------------------------------------------------------------------------

    def values(self, batch: Batch, *, measure: bool = True) -> TokenValues:
        """Return the values of a batch's sampled tokens; their log-probabilities have a gradient.

        Args:
            batch: The batch.
            measure: See :meth:`Head.values <agl_algo_grpo.head.Head.values>`.
        """
        return self._values(self._head, batch, measure)

    def evaluate(self, rows: Sequence[Row]) -> list[RowLogprobs]:
        """Return the policy's values for each row, without gradient."""

        def row_values(batch: Batch) -> dict[int, RowLogprobs]:
            return self.by_row(batch, self.values(batch))

        return self._over_passes(rows, row_values)

    @staticmethod
    def by_row(batch: Batch, values: TokenValues) -> dict[int, RowLogprobs]:
        """Return the values of a batch's rows, without gradient, by their indices."""
        parts = [
            batch.split(of_tokens.detach())
            for of_tokens in (values.raw, values.logprobs, values.entropy)
        ]
        return {i: RowLogprobs(*(part[i] for part in parts)) for i in batch.masks}

    def reference_logprobs(self, rows: Sequence[Row]) -> list[Tensor]:
        """Return the starting model's log-probabilities of each row, ``[T]`` each, on the CPU.

        They are 0 where the policy did not sample the token.
        """
        lora = self._config.lora is not None
        if self._reference is None and not lora:
            model = load_model(self._folder, dtype=self.dtype, device=self.device)
            self._reference = Head(model, self.dtype)
        head = self._reference or self._head

        def row_logprobs(batch: Batch) -> dict[int, Tensor]:
            return batch.split(self._values(head, batch, measure=False).logprobs)

        with self.model.disable_adapter() if lora else nullcontext():
            return self._over_passes(rows, row_logprobs)

    def _over_passes(self, rows: Sequence[Row], work: Callable[[Batch], dict[int, T]]) -> list[T]:
        """Return what ``work`` returns for each row, in the rows' order."""

        @torch.no_grad()
        def over(passes: list[Pass]) -> list[T]:
            found: dict[int, T] = {}
            for one in passes:
                found |= work(collate(rows, one.bins, device=self.device, shared=one.shared))
            return [found[i] for i in range(len(rows))]

        return self.micro_batches.run(rows, over)

    def _values(self, head: Head, batch: Batch, measure: bool) -> TokenValues:
        hidden = head.hidden_states(batch.inputs)
        return head.values(
            hidden.flatten(0, 1),
            batch.sources,
            batch.targets,
            chunk_tokens=self._config.chunk_tokens,
            temperature=self._config.temperature,
            measure=measure,
        )

    # -- backward --------------------------------------------------------------------------------

    def set_learning_rate(self, step: int) -> float:
        """Set and return the learning rate of a step: linear warm-up, then constant."""
        warmup = self._config.warmup_steps
        rate = self._config.learning_rate * (min(1.0, (step + 1) / warmup) if warmup else 1.0)
        self._optimizer.set_learning_rate(rate)
        return rate

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._optimizer.zero_grad()

    def step(self) -> float:
        """Apply the gradients and clear them; return their norm before clipping.

        If the norm is not finite, nothing is applied.

        Raises:
            FloatingPointError: That was so several times in a row.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained, self._config.max_grad_norm))
        if math.isfinite(norm):
            self._optimizer.step()
            self._refused = 0
        else:
            self._refused += 1
            logger.warning("the norm of the gradients is %s; the update is left out", norm)
        self._optimizer.zero_grad()
        if self._refused >= _MOST_REFUSED:
            raise FloatingPointError(
                f"the norm of the gradients is {norm}, in {self._refused} updates in a row; lower "
                "the learning rate"
            )
        return norm

    def _shares_prefixes(self) -> bool:
        """Return whether the model can compute trees of rows; log once why it cannot."""
        reason = self._head.cannot_share(self._config.max_row_tokens)
        if reason:
            logger.warning("rows with a common beginning are computed separately: %s", reason)
        return not reason

    def _checkpoint_gradients(self) -> None:
        _checkpoint_gradients(self.model)
        self._checkpoints = True

    def _save_memory(self) -> bool:
        """Recompute activations from now on, if the options leave that open."""
        if self._checkpoints or self._config.gradient_checkpointing is False:
            return False
        self._checkpoint_gradients()
        logger.warning(
            "out of memory with one row in a forward pass: activations are computed again in the "
            "backward pass from now on (gradient_checkpointing)"
        )
        return True

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
        raise missing_package("GRPO with LoRA", "agl-algo-grpo", extra="lora") from error
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
