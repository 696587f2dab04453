"""Writes that are for attempts which have not ended.

A store server looks whether an attempt has ended before it takes what the attempt's own agent
writes. The attempt may end between that look and the write, so the engine looks again in the step
that stores the spans.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

only_open_attempts: Final[ContextVar[bool]] = ContextVar("agl_only_open_attempts", default=False)
"""Whether spans that are added in this context are refused if their attempt has ended."""
