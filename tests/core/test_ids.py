import re

import pytest

from agl_core import ids


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (ids.new_rollout_id, "ro-[0-9a-f]{12}"),
        (ids.new_attempt_id, "at-[0-9a-f]{8}"),
        (ids.new_resources_id, "rs-[0-9a-f]{12}"),
        (ids.new_trace_id, "[0-9a-f]{32}"),
        (ids.new_span_id, "[0-9a-f]{16}"),
        (lambda: ids.generate_id(7), "[0-9a-f]{7}"),
    ],
)
def test_ids_have_their_shape_and_do_not_repeat(make, pattern):
    made = [make() for _ in range(100)]
    assert all(re.fullmatch(pattern, item) for item in made)
    assert len(set(made)) == 100


def test_an_id_needs_a_digit():
    with pytest.raises(ValueError, match="at least 1"):
        ids.generate_id(0)
