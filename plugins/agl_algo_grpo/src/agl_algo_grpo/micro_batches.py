"""Forward passes that fit in memory: they get smaller when memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import torch

from agl_algo_grpo.batches import Pass, Row, plan

__all__ = ["MicroBatches"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class MicroBatches:
    """Divides rows into forward passes.

    Args:
        max_tokens: Limit of tokens in one pass, padding included.
        pack: See :func:`~agl_algo_grpo.batches.plan`.
        balance: See :func:`~agl_algo_grpo.batches.plan`.
        last_resort: Saves memory in another way if a pass of one row does not fit; returns False if
            it cannot.

    Attributes:
        max_tokens: The limit; it falls when memory runs out.
    """

    def __init__(
        self,
        max_tokens: int,
        *,
        pack: bool,
        balance: float | None,
        last_resort: Callable[[], bool],
    ) -> None:
        self.max_tokens = max_tokens
        self._pack = pack
        self._balance = balance
        self._last_resort = last_resort
        self._told = False

    def run(self, rows: Sequence[Row], work: Callable[[list[Pass]], T]) -> T:
        """Return ``work(passes)``; repeat it with smaller passes if memory runs out.

        Args:
            rows: The rows.
            work: Takes the passes. It must do all of its work again when it is called again.

        Raises:
            RuntimeError: A pass of one row does not fit; on a GPU a torch.OutOfMemoryError.
        """
        while True:
            passes = plan(rows, self.max_tokens, pack=self._pack, balance=self._balance)
            try:
                return work(passes)
            except RuntimeError as error:  # torch.OutOfMemoryError is one
                if not _is_out_of_memory(error) or not self._shrink(passes):
                    raise
            # After the handler: inside it, the error refers to the tensors of the failed pass.
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _shrink(self, passes: Sequence[Pass]) -> bool:
        """Lower the limit below the largest pass that can be divided."""
        sizes = [one.tokens for one in passes if sum(map(len, one.bins)) > 1]
        if not sizes:
            return self._last_resort()
        self.max_tokens = min(self.max_tokens, max(sizes)) // 2
        logger.log(
            logging.DEBUG if self._told else logging.WARNING,
            "out of memory: the update is repeated with at most %d tokens in a forward pass; the "
            "gradients stay the same (micro_batch_tokens sets the limit)",
            self.max_tokens,
        )
        self._told = True
        return True


# Plain RuntimeErrors of PyTorch's allocator on a CPU, of CUDA outside of the allocator, of cuBLAS.
_SAID: Final = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(s in str(error) for s in _SAID)
