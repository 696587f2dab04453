"""Control of a proxy in another process, over HTTP. Needs scope admin or algorithm.

| call                          | does                                                             |
|-------------------------------|------------------------------------------------------------------|
| GET  /control/status          | returns backends, calls in flight, waiting spans                 |
| POST /control/pause, /resume  | makes new calls wait; lets waiting calls continue                |
| POST /control/drain           | ``{"deadline": s, "abort": bool}``: pauses, waits for the rest   |
| POST /control/models          | ``{"model_list": [...]}``: replaces the backends                 |
| POST /control/version         | ``{"version": v, "model": name?}``: sets the version of weights  |
| POST /control/flush           | ``{"rollout_id"?, "attempt_id"?}``: waits until spans are stored |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agl_core.errors import ConfigError
from agl_core.genai import dumps
from agl_proxy_direct.errors import CallError
from agl_serving import Headers, Identity, Receive, Send, read_body, send_response

if TYPE_CHECKING:
    from agl_proxy_direct.app import ProxyApp

__all__ = ["CONTROL_PREFIX", "control"]

CONTROL_PREFIX: Final = "/control/"
_MAX_BODY_BYTES: Final = 16 * 2**20
"""A list of backends takes kilobytes; a script of answers may take megabytes."""


class _Command(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Drain(_Command):
    deadline: float = Field(default=60.0, ge=0)
    abort: bool = False


class _Models(_Command):
    model_list: list[dict[str, Any]]


class _Version(_Command):
    version: str
    model: str | None = None


class _Flush(_Command):
    rollout_id: str | None = None
    attempt_id: str | None = None


_COMMANDS: Final[dict[str, type[_Command]]] = {
    "drain": _Drain,
    "flush": _Flush,
    "models": _Models,
    "pause": _Command,
    "resume": _Command,
    "version": _Version,
}


async def control(
    app: ProxyApp,
    identity: Identity,
    method: str,
    name: str,
    headers: Headers,
    receive: Receive,
    send: Send,
) -> None:
    """Answer a control call; ``name`` is the path below ``/control/``.

    Raises:
        CallError: 403, the scope does not allow it; 404, there is no such call; 422, the body is
            wrong.
    """
    if identity.scope not in ("admin", "algorithm"):
        raise CallError(403, f"a token of scope {identity.scope} may not do this", "forbidden")
    if method == "GET" and name == "status":
        await send_response(send, 200, dumps(status(app)))
        return
    kind = _COMMANDS.get(name)
    if method != "POST" or kind is None:
        raise CallError(404, f"there is no control call {method} {name}", "not_found")
    body = await read_body(receive, headers, _MAX_BODY_BYTES)
    try:
        command = kind.model_validate_json(body or b"{}")
        answer = await _execute(app, name, command)
    except (ValidationError, ConfigError) as error:
        raise CallError(422, str(error), "invalid_order") from None
    await send_response(send, 200, dumps(answer))


async def _execute(app: ProxyApp, name: str, command: _Command) -> dict[str, Any]:
    if isinstance(command, _Drain):
        return {"in_flight": await app.drain(command.deadline, abort=command.abort)}
    if isinstance(command, _Models):
        app.upstream_spec.check_received(command.model_list)
        app.update(app.upstream_spec.parse(command.model_list))
    elif isinstance(command, _Version):
        app.balancer.set_version(command.version, command.model)
    elif isinstance(command, _Flush):
        await app.spool.flush(command.rollout_id, command.attempt_id)
    elif name == "pause":
        app.balancer.pause()
    else:
        app.balancer.resume()
    return {"models": app.balancer.models}


def status(app: ProxyApp) -> dict[str, Any]:
    """Return the state of the proxy, without secrets."""
    balancer, spool = app.balancer, app.spool
    return {
        "paused": balancer.paused,
        "in_flight": balancer.in_flight,
        "queued": balancer.waiting(),
        "spans": {
            "waiting": spool.waiting,
            "stored": spool.stored_spans,
            "refused": spool.refused_spans,
            "store_error": spool.store_error,
        },
        "backends": [
            {
                "model_name": member.backend.model_name,
                "model": member.backend.model,
                "api_base": member.backend.api_base,
                "protocols": member.backend.protocols,
                "version": member.version,
                "in_flight": member.in_flight,
                "calls": member.calls,
                "failures": member.failures,
            }
            for member in balancer.members()
        ],
    }
