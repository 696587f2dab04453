from ._attributes import (
    check_attributes_sanity as check_attributes_sanity,
    filter_and_unflatten_attributes as filter_and_unflatten_attributes,
    filter_attributes as filter_attributes,
    flatten_attributes as flatten_attributes,
    format_exception_attributes as format_exception_attributes,
    full_qualified_name as full_qualified_name,
    sanitize_attribute_value as sanitize_attribute_value,
    sanitize_attributes as sanitize_attributes,
    unflatten_attributes as unflatten_attributes,
    utf8 as utf8,
)
from ._convert import (
    record_failure as record_failure,
    to_core_fields as to_core_fields,
    to_span as to_span,
)
from ._links import (
    extract_links_from_attributes as extract_links_from_attributes,
    extract_tags_from_attributes as extract_tags_from_attributes,
    make_link_attributes as make_link_attributes,
    make_tag_attributes as make_tag_attributes,
    query_linked_spans as query_linked_spans,
)
