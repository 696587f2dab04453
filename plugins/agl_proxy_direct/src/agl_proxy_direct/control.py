"""Control over HTTP: for whoever runs a proxy in another process. Scope admin or algorithm.

| call                          | does                                                             |
|-------------------------------|------------------------------------------------------------------|
| GET  /control/status          | backends, calls in flight, spans that wait                       |
| POST /control/pause, /resume  | new calls wait; go on                                            |
| POST /control/drain           | ``{"deadline": s, "abort": bool}``: pause and wait for the rest  |
| POST /control/models          | ``{"model_list": [...]}``: new backends, at once                 |
| POST /control/version         | ``{"version": v, "model": name?}``: which weights answer now     |
| POST /control/flush           | ``{"rollout_id"?, "attempt_id"?}``: wait until spans are stored  |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agl_core.errors import ConfigError
from agl_core.genai import dumps
from agl_proxy_direct.failures import CallError
from agl_serving.messages import Headers, Message, Receive, Send, read_body, send_response
from agl_serving.tokens import Identity

if TYPE_CHECKING:
    from agl_proxy_direct.app import ProxyApp

__all__ = ["CONTROL_PREFIX", "control"]

CONTROL_PREFIX: Final = "/control/"


class _Order(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Drain(_Order):
    deadline: float = Field(default=60.0, ge=0)
    abort: bool = False


class _Models(_Order):
    model_list: list[dict[str, Any]]


class _Version(_Order):
    version: str
    model: str | None = None


class _Flush(_Order):
    rollout_id: str | None = None
    attempt_id: str | None = None


_ORDERS: Final[dict[str, type[_Order]]] = {
    "drain": _Drain,
    "flush": _Flush,
    "models": _Models,
    "pause": _Order,
    "resume": _Order,
    "version": _Version,
}


async def control(
    app: ProxyApp,
    identity: Identity,
    scope: Message,
    headers: Headers,
    receive: Receive,
    send: Send,
) -> None:
    """Answer a control call.

    Raises:
        CallError: The caller may not, there is no such call, or its body is wrong.
    """
    if identity.scope not in ("admin", "algorithm"):
        raise CallError(403, f"a token of scope {identity.scope} may not do this", "forbidden")
    name = scope["path"].removeprefix(CONTROL_PREFIX)
    if scope["method"] == "GET" and name == "status":
        await send_response(send, 200, dumps(status(app)))
        return
    kind = _ORDERS.get(name)
    if scope["method"] != "POST" or kind is None:
        raise CallError(404, f"no control call {scope['method']} {name}", "not_found")
    body = await read_body(receive, headers, app.options.max_body_bytes)
    try:
        order = kind.model_validate_json(body or b"{}")
        answer = await _obey(app, name, order)
    except (ValidationError, ConfigError) as error:
        raise CallError(422, str(error), "invalid_order") from None
    await send_response(send, 200, dumps(answer))


async def _obey(app: ProxyApp, name: str, order: _Order) -> dict[str, Any]:
    if isinstance(order, _Drain):
        return {"in_flight": await app.drain(order.deadline, abort=order.abort)}
    if isinstance(order, _Models):
        app.update(app.provision.parse(order.model_list))
    elif isinstance(order, _Version):
        app.balancer.set_version(order.version, order.model)
    elif isinstance(order, _Flush):
        await app.spool.flush(order.rollout_id, order.attempt_id)
    elif name == "pause":
        app.balancer.pause()
    else:
        app.balancer.resume()
    return {"models": app.balancer.models}


def status(app: ProxyApp) -> dict[str, Any]:
    """Return how the proxy is doing; it names no keys."""
    balancer, spool = app.balancer, app.spool
    return {
        "paused": balancer.paused,
        "in_flight": balancer.in_flight,
        "queued": balancer.waiting(),
        "spans": {
            "waiting": spool.waiting,
            "stored": spool.stored_spans,
            "refused": spool.refused_spans,
            "store_error": spool.trouble,
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
