"""Which reply an error becomes."""

from __future__ import annotations

import logging
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from pydantic_core import ValidationError
from starlette.exceptions import HTTPException

from agl_core import errors
from agl_core.ids import generate_id
from agl_serving import HTTPError, error_details
from agl_store_http.server.replies.reply import Reply, problem

__all__ = ["failure"]

logger = logging.getLogger(__name__)

_STATUS_OF: Final[tuple[tuple[type[Exception], int], ...]] = (
    (errors.NotFoundError, 404),
    (errors.AttemptEndedError, 409),
    (errors.InvalidArgumentError, 400),
    (errors.PermissionDeniedError, 403),
    (errors.SpansEvictedError, 410),
    (errors.RunEndedError, 410),
    (errors.StoreUnavailableError, 503),
    (errors.StoreDataError, 507),
)


def failure(error: Exception, method: str, path: str) -> Reply:
    """Return the reply to a failed request.

    An error that the caller did not cause is logged with its traceback. The reply carries only the
    id of that log entry, because a traceback may show what the caller may not know.
    """
    if isinstance(error, HTTPError):
        more = {"error_type": error.error_type} if error.error_type else {}
        return problem(error.status, error.detail, error.headers, **more)
    if isinstance(error, HTTPException):  # the router's 404 and 405
        return problem(error.status_code, error.detail)
    if isinstance(error, ValidationError):
        return problem(422, error_details(error, "body"))
    if isinstance(error, RequestValidationError):
        return problem(422, [_detail(item) for item in error.errors()])
    for kind, status in _STATUS_OF:
        if isinstance(error, kind):
            return problem(status, str(error), error_type=type(error).__name__)
    error_id = generate_id(12)
    logger.error("%s %s failed (error_id %s)", method, path, error_id, exc_info=error)
    return problem(500, "Internal server error", error_type=type(error).__name__, error_id=error_id)


def _detail(item: dict[str, Any]) -> dict[str, Any]:
    # FastAPI's details also hold the input, which may be large or secret.
    return {"type": item["type"], "loc": item["loc"], "msg": item["msg"]}
