"""Access control of the proxy: tokens, the Host header, and what each scope allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agl_core.genai import Route
from agl_proxy_direct.errors import CallError
from agl_serving import BrowserGuard, Headers, Identity, TokenVerifier

__all__ = ["TOKENIZING", "AccessControl"]

TOKENIZING: Final = frozenset({"POST /detokenize", "POST /messages/count_tokens", "POST /tokenize"})
"""Calls that run no model. They do not count as model calls of a rollout."""
_ANONYMOUS: Final = Identity("admin")
"""Identity of every caller of a proxy without tokens; it may make every call."""


class AccessControl:
    """Identifies callers and checks what they may call.

    Args:
        auth_token: Secret that tokens are signed with; None accepts calls without a token.
        allowed_hosts: Host headers accepted without a token, besides localhost and IP addresses.
        attempt_routes: Further calls that tokens of attempts and runners may make, e.g.
            ``POST /rerank``, besides model calls, tokenizing, and the list of models.
    """

    def __init__(
        self, auth_token: str | None, allowed_hosts: Sequence[str], attempt_routes: Sequence[str]
    ) -> None:
        self._routes = TOKENIZING | set(attempt_routes)
        self._tokens = TokenVerifier(auth_token) if auth_token else None
        # A web page cannot guess a token, so only a proxy without tokens needs this check.
        self._guard = None if self._tokens else BrowserGuard(allowed_hosts)

    @property
    def uses_tokens(self) -> bool:
        """Whether callers' API keys are tokens of this proxy."""
        return self._tokens is not None

    def identify(self, headers: Headers) -> Identity:
        """Return the identity and scope of the caller.

        Raises:
            CallError: 401, the request has no valid token.
            HTTPError: The Host or Origin header is one that only a malicious web page sends.
        """
        if self._guard is not None:
            self._guard.check(headers)
        if self._tokens is None:
            return _ANONYMOUS
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer" or not token:
            # From Anthropic's clients, and from Azure's.
            token = headers.get(b"x-api-key") or headers.get(b"api-key", b"")
        identity = self._tokens.identify(token.strip()) if token else None
        if identity is None:
            raise CallError(
                401,
                "this proxy needs a valid token as API key",
                "invalid_api_key",
                ((b"www-authenticate", b"Bearer"),),
            )
        return identity

    def check_call(self, identity: Identity, method: str, route: Route) -> None:
        """Check that a caller may make a call.

        Backends also serve calls that manage them (vLLM's ``/load_lora_adapter``) or that read what
        others stored (OpenAI's ``/files``), and the proxy adds the operator's key. So agents may
        make the calls of a list, not all but those of a list.

        Raises:
            CallError: 403, the token's scope does not allow it.
        """
        if identity.scope in ("admin", "algorithm"):
            return
        if identity.scope == "read":
            raise CallError(403, "a token of scope read may not call models", "forbidden")
        if identity.scope == "attempt" and (route.rollout_id, route.attempt_id) != (
            identity.rollout_id,
            identity.attempt_id,
        ):
            raise CallError(
                403, f"this token is bound to attempt {identity.attempt_id}", "forbidden"
            )
        if method == "POST" and route.protocol is not None:
            return
        if method == "GET" and (route.endpoint + "/").startswith("/models/"):
            return
        call = f"{method} {route.endpoint}"
        if call not in self._routes:
            raise CallError(
                403,
                f"a token of scope {identity.scope} may not call {call[:80]}; the proxy's option "
                "attempt_routes can allow it",
                "forbidden",
            )
