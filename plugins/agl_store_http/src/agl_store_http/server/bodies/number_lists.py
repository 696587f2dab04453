"""Long lists of numbers in JSON, kept as bytes.

A model call has a token id and a log-probability per token. As Python objects these take 6 to 20
times their size as JSON, and nobody on a server reads them. So long lists are cut out before a body
is parsed, checked piece by piece, and put back into the JSON that is stored.
"""

from __future__ import annotations

import math
import re
import secrets
from typing import Any, Final

from pydantic_core import from_json

from agl_store_kit import Pauses

__all__ = ["NumberLists"]

_LIST_AS_VALUE: Final = re.compile(rb'": ?\[')
"""The end of a key and the beginning of a list."""
_NUMBERS: Final = re.compile(rb"\[[-+0-9.eE,\s]{1024,}+\]")
_KEY_ENDS: Final = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-.")
_PIECE: Final = 64 * 1024
"""Bytes that are looked at with one call, 20 µs."""
_MARK: Final = secrets.token_hex(16).encode()
"""Nobody else can write it."""
_CUT: Final = re.compile(rb'\["%b(\d+)"\]' % _MARK)


class NumberLists:
    """The lists cut out of one body."""

    def __init__(self) -> None:
        self._lists: list[bytes] = []

    async def cut(self, body: bytes) -> bytes:
        """Return the body with a list of one text in the place of each long list of numbers."""
        pauses = Pauses()
        parts: list[bytes] = []
        done = 0
        for found in _LIST_AS_VALUE.finditer(body):
            await pauses.take()
            # In JSON a quote after a letter or digit ends a text, so this is not within a text: an
            # escaped quote comes after a backslash.
            if body[found.start() - 1] not in _KEY_ENDS:
                continue
            numbers = _NUMBERS.match(body, found.end() - 1)
            if numbers is None or not await _are_valid(numbers[0], pauses):
                continue
            parts += [body[done : numbers.start()], b'["%b%d"]' % (_MARK, len(self._lists))]
            self._lists.append(numbers[0])
            done = numbers.end()
        if not parts:
            return body
        return b"".join([*parts, body[done:]])

    def put_back(self, json: bytes) -> bytes:
        """Return JSON that was made from what :meth:`cut` returned, with its lists."""
        if not self._lists or _MARK not in json:
            return json
        return _CUT.sub(lambda found: self._lists[int(found[1])], json)


async def _are_valid(numbers: bytes, pauses: Pauses) -> bool:
    """Return whether a list of digits and signs is JSON, and every number finite."""
    at, end = 1, len(numbers) - 1
    if numbers[end - 1 : end].strip() in (b",", b""):
        return False
    may_overflow = b"e" in numbers or b"E" in numbers
    while at < end:
        stop = end if end - at <= _PIECE else numbers.rfind(b",", at, at + _PIECE)
        if stop < 0:
            return False
        try:
            items: list[Any] = from_json(b"[%b]" % numbers[at:stop])
            if may_overflow and not all(map(math.isfinite, items)):
                return False
        except (ValueError, OverflowError):
            return False
        at = stop + 1
        await pauses.take()
    return True
