"""The files that one rollout in process passes: few, or with a reason."""

from __future__ import annotations

from tests.benchmark.bench_path import REASONS, WITHOUT_REASON, job_of, name_of, walk


def test_each_file_past_the_thirtieth_has_a_reason():
    files = walk()
    names = [name_of(file) for file in files]
    assert "agl_store_kit/engine.py" in names
    assert set(names[WITHOUT_REASON:]) - set(REASONS) == set()
    assert set(REASONS) - set(names) == set(), "no rollout passes these any more"
    assert [name for name, file in zip(names, files, strict=True) if not job_of(file)] == []
