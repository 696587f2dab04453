"""Tables that one test checks."""

from __future__ import annotations

import pytest

from tests.tables import check_each


def test_every_entry_is_checked():
    seen: list[tuple[str, int]] = []
    check_each(lambda name, number: seen.append((name, number)), {"a": 1, "b": 2}.items())
    assert seen == [("a", 1), ("b", 2)]


def test_a_failure_names_every_wrong_entry_and_no_other():
    def check(name: str) -> None:
        if name == "silent":
            with pytest.raises(KeyError):
                str(name)
        if name == "broken":
            raise OSError("it is gone")
        assert name != "unequal"

    with pytest.raises(AssertionError) as caught:
        check_each(check, ["right", "unequal", "silent", "broken"])
    lines = [line for line in str(caught.value).splitlines() if line[:1] in "0123456789'"]
    assert lines[0] == "3 of 4 are wrong:"
    assert [line.partition(":")[0] for line in lines[1:]] == ["'unequal'", "'silent'", "'broken'"]
    assert "OSError: it is gone" in lines[-1]


def test_an_empty_table_is_a_failure():
    with pytest.raises(AssertionError, match="empty"):
        check_each(print, [])
