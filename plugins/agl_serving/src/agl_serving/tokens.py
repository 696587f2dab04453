"""Access tokens: the permissions of a server's clients.

A server has one secret. The secret itself is a token with scope ``admin``; scoped tokens are JWTs
(RFC 7519) signed with a key derived from it::

    secret = "…"                                    # AGL_AUTH_TOKEN of the server
    token = mint_token(secret, "runner", lifetime=86_400)

Every attempt gets a token of scope ``attempt`` with its claim. With it the agent's code can write
its own spans, but cannot read, reward or change another attempt.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from agl_core.errors import ConfigError, PermissionDeniedError

__all__ = [
    "ATTEMPT_TOKEN_SECONDS",
    "MIN_SECRET_LENGTH",
    "SCOPES",
    "Identity",
    "Scope",
    "TokenVerifier",
    "is_token",
    "mint_token",
]

Scope = Literal["admin", "algorithm", "runner", "attempt", "read"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
MIN_SECRET_LENGTH: Final = 16
"""Characters; a shorter secret could be guessed from any token that it signed."""

_ALGORITHM: Final = "HS256"
_AUDIENCE: Final = "agl-store"
ATTEMPT_TOKEN_SECONDS: Final = 86_400.0
"""Lifetime of an attempt's token, in seconds."""
_CACHE_SIZE: Final = 4096
"""Tokens whose check is remembered; a thousand runners have some thousand."""
RENEWABLE_SCOPES: Final = frozenset({"algorithm", "runner"})
"""Scopes of programs that run for longer than a token holds. People and agents ask for new ones."""
_RENEWABLE_SECONDS: Final = 90 * 86_400.0
"""How long after its first issue a token can be renewed: a stolen one does not live for ever."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The permissions of the client that sent a token.

    Attributes:
        scope: The permissions of the token.
        rollout_id: The rollout that an ``attempt`` token is bound to.
        attempt_id: The attempt that an ``attempt`` token is bound to.
        expires: Expiry in epoch seconds; None for the secret itself and for servers without auth.
        models: The models that the client may call at a proxy; None means all.
        issued: When the token was signed, in epoch seconds; None if it does not say.
        since: When the first of the tokens that it renews was signed; None if it does not say.
    """

    scope: Scope
    rollout_id: str | None = None
    attempt_id: str | None = None
    expires: float | None = None
    models: frozenset[str] | None = None
    issued: float | None = None
    since: float | None = None

    def require_attempt(self, rollout_id: str | None, attempt_id: str | None) -> None:
        """Raise PermissionDeniedError if the token is bound to another attempt than this one."""
        if self.scope == "attempt" and (rollout_id, attempt_id) != (
            self.rollout_id,
            self.attempt_id,
        ):
            raise PermissionDeniedError(
                f"this token is bound to attempt {self.attempt_id} of rollout {self.rollout_id}"
            )


def mint_token(
    secret: str,
    scope: Scope,
    *,
    lifetime: float,
    rollout_id: str | None = None,
    attempt_id: str | None = None,
    models: Sequence[str] | None = None,
) -> str:
    """Sign a token.

    Args:
        secret: The server's secret.
        scope: The permissions of the token.
        lifetime: Seconds until it expires.
        rollout_id: Rollout to bind an ``attempt`` token to.
        attempt_id: Attempt to bind an ``attempt`` token to.
        models: Models that the token's owner may call at a proxy; None means all.

    Raises:
        ConfigError: The secret is too short, the scope is unknown, or the ids do not fit it.
    """
    if scope not in SCOPES:
        raise ConfigError(f"unknown scope {scope!r}: use one of {', '.join(SCOPES)}")
    given = {rollout_id is not None, attempt_id is not None}
    if given != {scope == "attempt"}:
        raise ConfigError("scope attempt needs a rollout and an attempt; other scopes take neither")
    return _Signer(secret).sign(scope, lifetime, rollout_id, attempt_id, models)


class _Signer:
    def __init__(self, secret: str) -> None:
        if len(secret) < MIN_SECRET_LENGTH:
            raise ConfigError(
                f"an auth token needs at least {MIN_SECRET_LENGTH} characters, e.g. from: "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        # Clients send the secret as a bearer token, so the signing key must be another one.
        self.key = hmac.digest(secret.encode(), b"agl-store token signing key v1", hashlib.sha256)

    def sign(
        self,
        scope: Scope,
        lifetime: float,
        rollout_id: str | None,
        attempt_id: str | None,
        models: Sequence[str] | None = None,
        since: float | None = None,
    ) -> str:
        import jwt

        now = time.time()
        claims: dict[str, Any] = {
            "aud": _AUDIENCE,
            "scope": scope,
            "exp": int(now + lifetime),
            # Not "iat": a library may refuse a token of a server whose clock is ahead of its own.
            "signed": int(now),
            "since": int(now if since is None else since),
        }
        if rollout_id is not None:
            claims["rollout_id"] = rollout_id
            claims["attempt_id"] = attempt_id
        if models is not None:
            claims["models"] = list(models)
        return jwt.encode(  # pyright: ignore[reportUnknownMemberType]
            claims, self.key, algorithm=_ALGORITHM
        )


def is_token(text: str) -> bool:
    """Tell whether a key is a token of some agl server, valid or not; providers' keys are not."""
    import jwt

    if not text.startswith("eyJ"):  # the beginning of every JWT
        return False
    try:
        claims = jwt.decode(  # pyright: ignore[reportUnknownMemberType]
            text, options={"verify_signature": False}
        )
    except (jwt.PyJWTError, RecursionError):  # older PyJWT: JSON nested deeply
        return False
    return claims.get("aud") == _AUDIENCE


class TokenVerifier:
    """Checks tokens against one secret and caches recent ones. For one event loop.

    Args:
        secret: The server's secret.
        attempt_lifetime: Lifetime of attempt tokens, in seconds.

    Raises:
        ConfigError: The secret is too short.
    """

    def __init__(self, secret: str, *, attempt_lifetime: float = ATTEMPT_TOKEN_SECONDS) -> None:
        self._signer = _Signer(secret)
        self._secret = secret.encode()
        self._attempt_lifetime = attempt_lifetime
        self._known: dict[bytes, Identity] = {}

    def attempt_token(self, rollout_id: str, attempt_id: str) -> str:
        """Sign the token of a claimed attempt."""
        return self._signer.sign("attempt", self._attempt_lifetime, rollout_id, attempt_id)

    def renew(self, identity: Identity) -> tuple[str, float] | None:
        """Return a token for the owner of one, and how many seconds it holds: as long as that did.

        None if tokens of its scope are not renewed, or if the first one is too old.
        """
        expires, issued, since = identity.expires, identity.issued, identity.since
        if identity.scope not in RENEWABLE_SCOPES or None in (expires, issued, since):
            return None
        assert expires is not None
        assert issued is not None
        assert since is not None
        lifetime = min(expires - issued, since + _RENEWABLE_SECONDS - time.time())
        if lifetime <= expires - time.time():
            return None
        models = None if identity.models is None else sorted(identity.models)
        token = self._signer.sign(identity.scope, lifetime, None, None, models, since)
        return token, lifetime

    def identify(self, token: bytes) -> Identity | None:
        """Return the token's identity, or None if it is forged, foreign or expired."""
        known = self._known.get(token)
        if known is None:
            known = self._verify(token)
            if known is None:
                return None
            if len(self._known) >= _CACHE_SIZE:
                del self._known[next(iter(self._known))]
            self._known[token] = known
        if known.expires is not None and known.expires <= time.time():
            del self._known[token]
            return None
        return known

    def _verify(self, token: bytes) -> Identity | None:
        import jwt

        if hmac.compare_digest(token, self._secret):
            return Identity("admin")
        try:
            claims = jwt.decode(  # pyright: ignore[reportUnknownMemberType]
                token,
                self._signer.key,
                algorithms=[_ALGORITHM],
                audience=_AUDIENCE,
                options={"require": ["exp", "aud"]},
            )
        except (jwt.PyJWTError, RecursionError):
            return None
        scope = claims.get("scope")
        if scope not in SCOPES:
            return None
        rollout_id, attempt_id = claims.get("rollout_id"), claims.get("attempt_id")
        if scope == "attempt" and not (isinstance(rollout_id, str) and isinstance(attempt_id, str)):
            return None
        models = claims.get("models")
        allowed = None if models is None else frozenset(map(str, models))
        times = (claims.get(name) for name in ("signed", "since"))
        issued, since = (float(at) if isinstance(at, int) else None for at in times)
        expires = float(claims["exp"])
        return Identity(scope, rollout_id, attempt_id, expires, allowed, issued, since)
