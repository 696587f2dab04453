"""0.3's second names of the constants of :mod:`agl_core.semconv`."""

from __future__ import annotations

from enum import Enum
from typing import Final

from agl_core import semconv

__all__ = [
    "AGL_ANNOTATION",
    "AGL_EXCEPTION",
    "AGL_MESSAGE",
    "AGL_OBJECT",
    "AGL_OPERATION",
    "AGL_REWARD",
    "AGL_VIRTUAL",
    "LightningResourceAttributes",
    "LightningSpanAttributes",
    "LinkAttributes",
    "RewardAttributes",
]

AGL_ANNOTATION: Final = semconv.SPAN_ANNOTATION
AGL_MESSAGE: Final = semconv.SPAN_MESSAGE
AGL_OBJECT: Final = semconv.SPAN_OBJECT
AGL_EXCEPTION: Final = semconv.SPAN_EXCEPTION
AGL_OPERATION: Final = semconv.SPAN_OPERATION
AGL_REWARD: Final = semconv.SPAN_REWARD
AGL_VIRTUAL: Final = semconv.SPAN_VIRTUAL


class LightningResourceAttributes(Enum):
    """The keys that assign a span to an attempt."""

    ROLLOUT_ID = semconv.ROLLOUT_ID
    ATTEMPT_ID = semconv.ATTEMPT_ID
    SPAN_SEQUENCE_ID = semconv.SPAN_SEQUENCE_ID
    TRACER_NAME = semconv.TRACER_NAME


class LightningSpanAttributes(Enum):
    """The keys of attributes."""

    REWARD = semconv.REWARD
    LINK = semconv.LINK
    TAG = semconv.TAG
    MESSAGE_BODY = semconv.MESSAGE_BODY
    OBJECT_TYPE = semconv.OBJECT_TYPE
    OBJECT_LITERAL = semconv.OBJECT_LITERAL
    OBJECT_JSON = semconv.OBJECT_JSON
    OPERATION_NAME = semconv.OPERATION_NAME
    OPERATION_INPUT = semconv.OPERATION_INPUT
    OPERATION_OUTPUT = semconv.OPERATION_OUTPUT


class RewardAttributes(Enum):
    """Fields below ``agentlightning.reward.<i>``."""

    REWARD_NAME = "name"
    REWARD_VALUE = "value"


class LinkAttributes(Enum):
    """Fields below ``agentlightning.link.<i>``."""

    KEY_MATCH = "key_match"
    VALUE_MATCH = "value_match"
