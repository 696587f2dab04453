"""Ends the calls of cancelled ops.

Weave's wrapper of an asynchronous op ends its call after an ``Exception``, which the error of a
cancelled task is not. So the call would stay open, and later calls of the task would be below it.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Generator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_tracer_weave.client import LocalWeaveClient

__all__ = ["cancelled_calls_end"]


@contextmanager
def cancelled_calls_end(client: LocalWeaveClient) -> Generator[None]:
    """End the calls of asynchronous ops that are cancelled, for a ``with`` block."""
    from weave.trace.context import call_context

    ops: Any = importlib.import_module("weave.trace.op")  # the package has a function of this name
    original = ops._call_async_func

    @wraps(original)
    async def call_async_func(*args: Any, **kwargs: Any) -> Any:
        outer = {call.id for call in call_context.get_call_stack()}
        try:
            return await original(*args, **kwargs)
        except asyncio.CancelledError as error:
            for call in reversed(call_context.get_call_stack()):
                if call.id not in outer:
                    client.finish_call(call, exception=error)
            raise

    ops._call_async_func = call_async_func
    try:
        yield
    finally:
        ops._call_async_func = original
