"""AdamW with fused kernels, whose states may be kept in the CPU's memory between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Optimizer"]


class Optimizer:
    """AdamW (Loshchilov and Hutter, 2019) over the trained parameters.

    It has PyTorch's fused kernel where the device has one.

    Args:
        parameters: The parameters.
        learning_rate: First learning rate.
        weight_decay: Weight decay.
        offload: Keep the states on the CPU. A step then moves those of one parameter at a time to
            its device and back, so the two float32 numbers per weight never are there at once.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        learning_rate: float,
        weight_decay: float,
        offload: bool,
    ) -> None:
        self._parameters = list(parameters)
        self._offload = offload
        options: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
        try:
            self._adamw = torch.optim.AdamW(self._parameters, fused=True, **options)
        except RuntimeError:  # the device has no fused kernel
            self._adamw = torch.optim.AdamW(self._parameters, **options)

    @property
    def _group(self) -> dict[str, Any]:
        return self._adamw.param_groups[0]

    @property
    def states(self) -> list[Tensor]:
        """All tensors of the states."""
        return [value for state in self._adamw.state.values() for value in state.values()]

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        self._group["lr"] = rate

    def step(self) -> None:
        """Apply the gradients."""
        if not self._offload:
            self._adamw.step()
            return
        try:
            for parameter in self._parameters:
                self._group["params"] = [parameter]
                self._move(parameter, parameter.device)
                self._adamw.step()
                self._move(parameter, torch.device("cpu"))
        finally:
            self._group["params"] = self._parameters

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._adamw.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` takes; the same with and without ``offload``."""
        return self._adamw.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's states, with this optimiser's own kernel and options."""
        if not self._offload:
            own = self._adamw.state_dict()["param_groups"]
            self._adamw.load_state_dict({**state, "param_groups": own})
            return
        # PyTorch would first move the states of all parameters to their device.
        for index, parameter in enumerate(self._parameters):
            if index in state["state"]:
                found: dict[str, Tensor] = state["state"][index]
                self._adamw.state[parameter] = {k: v.to("cpu") for k, v in found.items()}

    def _move(self, parameter: Tensor, device: torch.device) -> None:
        state: dict[str, Tensor] = self._adamw.state.get(parameter, {})
        for name, value in state.items():
            state[name] = value.to(device)
