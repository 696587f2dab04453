"""Tags and links: attributes that label a span, and attributes that point at another span.

A link is a set of conditions; it points at the spans that meet all of them. A reward for one
particular model call has a link to that call::

    emit_reward(1.0, attributes=make_link_attributes({"gen_ai.response.id": response.id}))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from agl_core import semconv
from agl_core.otel._attributes import filter_and_unflatten_attributes
from agl_core.semconv import LinkPydanticModel
from agl_core.types import Attributes, SpanLike

T = TypeVar("T", bound=SpanLike)


def make_tag_attributes(tags: Iterable[str]) -> Attributes:
    """Return attributes that give a span the tags."""
    return {f"{semconv.TAG}.{index}": tag for index, tag in enumerate(tags)}


def extract_tags_from_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """Return the tags of a span, in order.

    Raises:
        ValueError: The tags are not numbered from 0, or one is not a string.
    """
    tags = filter_and_unflatten_attributes(attributes, semconv.TAG)
    if not tags:
        return []
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError(f"{semconv.TAG}.<i> must number strings from 0")
    return tags


def make_link_attributes(links: Mapping[str, str]) -> Attributes:
    """Return attributes that link a span to the spans in which every key has the given value.

    Args:
        links: Attribute keys and their required values; ``trace_id`` and ``span_id`` refer to the
            ids of the span.

    Raises:
        ValueError: A key or value is not a string.
    """
    attributes: Attributes = {}
    for index, (key, value) in enumerate(links.items()):
        if not isinstance(key, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"a link needs a string for key and value, not {key!r}: {value!r}")
        attributes[f"{semconv.LINK}.{index}.key_match"] = key
        attributes[f"{semconv.LINK}.{index}.value_match"] = value
    return attributes


def extract_links_from_attributes(attributes: Mapping[str, Any]) -> list[LinkPydanticModel]:
    """Return the links of a span, in order.

    Raises:
        ValueError: The links are not numbered from 0, or one lacks its key or value.
    """
    links = filter_and_unflatten_attributes(attributes, semconv.LINK)
    if not links:
        return []
    if not isinstance(links, list):
        raise ValueError(f"{semconv.LINK}.<i> must number links from 0")
    return [LinkPydanticModel.model_validate(link) for link in links]


def query_linked_spans(spans: Sequence[T], links: Sequence[LinkPydanticModel]) -> list[T]:
    """Return the spans that meet every link; all spans if there are no links.

    Args:
        spans: Spans of the framework or of the OpenTelemetry SDK.
        links: Conditions; an attribute must equal the value, without conversion of types.
    """
    return [span for span in spans if all(_meets(span, link) for link in links)]


def _meets(span: SpanLike, link: LinkPydanticModel) -> bool:
    if link.key_match == "trace_id":
        return _trace_id(span) == link.value_match
    if link.key_match == "span_id":
        return _span_id(span) == link.value_match
    return (span.attributes or {}).get(link.key_match) == link.value_match


def _trace_id(span: SpanLike) -> str | None:
    own = getattr(span, "trace_id", None)
    return own if own is not None else _hex(span.context, "trace_id", 32)


def _span_id(span: SpanLike) -> str | None:
    own = getattr(span, "span_id", None)
    return own if own is not None else _hex(span.context, "span_id", 16)


def _hex(context: Any, field: str, digits: int) -> str | None:
    return None if context is None else f"{getattr(context, field):0{digits}x}"
