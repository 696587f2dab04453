"""Spans that an agent writes after its attempt has ended.

A store server looks whether an attempt has ended before it takes what the attempt's own agent
writes. The attempt may end between that look and the write, so the engine looks again in the step
that stores the spans. It also compares the times: those of the records are its.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

late_seconds: Final[ContextVar[float | None]] = ContextVar("agl_late_seconds", default=None)
"""How many seconds after the end of their attempt spans that are added in this context are taken.

0 refuses all of an attempt that has ended; None refuses none.
"""
