"""The normal form of a path: what the proxy decides about is what it sends to a backend.

A server decodes ``%3F`` to ``?`` and resolves ``..`` before it routes. If the proxy decided on
another form than the one it sends, a call could pass as an unknown path and reach a backend as a
model call, past limits and recording, or as an administrative call with the operator's key.
"""

from __future__ import annotations

import re
from typing import Final

from agl_proxy_direct.errors import CallError

__all__ = ["normal_path"]

# RFC 3986's characters of a path that need no escape, without ";", which some servers cut off with
# all that follows.
_NORMAL: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,=:@/-]*")


def normal_path(path: str) -> str:
    """Return a decoded path without empty segments and without a slash at its end.

    Raises:
        CallError: 400, a segment is ``.`` or ``..``, or a character needs an escape in a URL.
    """
    segments = [segment for segment in path.split("/") if segment]
    if not _NORMAL.fullmatch(path) or not {".", ".."}.isdisjoint(segments):
        raise CallError(400, f"the path {path[:80]!r} is not in normal form", "invalid_path")
    return "/" + "/".join(segments)
