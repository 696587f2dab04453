"""The package's exports, stores built by name, and cheap copies of records."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

import agl_core.store
from agl_core.plugins import build_component, get_registry
from agl_core.types import Attempt, AttemptedRollout, Rollout, RolloutConfig
from agl_core.types._copying import attach_attempt, copy_value, evolve
from agl_store_memory import InMemoryLightningStore
from agl_store_memory.config import MemoryStoreConfig


def test_importing_the_contract_imports_nothing_heavy():
    code = (
        "import sys, agl_core.store as s\n"
        "assert 'LightningStore' in dir(s)\n"
        "heavy = {'opentelemetry', 'fastapi', 'uvicorn', 'aiohttp', 'psutil'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Nothing"):
        agl_core.store.Nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_the_memory_store_is_built_by_name():
    _, spec = get_registry().component("store", "memory")
    assert (spec.kind, spec.name) == ("store", "memory")
    built = build_component("store", {"type": "memory", "eviction_memory_threshold": 12345})
    assert isinstance(built, InMemoryLightningStore)
    assert built._backend.budget.eviction == 12345


def test_its_configuration_is_checked():
    config = MemoryStoreConfig.model_validate({"eviction_memory_threshold": 0.5})
    assert type(config.eviction_memory_threshold) is float
    assert type(MemoryStoreConfig(eviction_memory_threshold=1).eviction_memory_threshold) is int
    for wrong in ({"path": "x"}, {"scan_debounce_seconds": -1}):
        with pytest.raises(ValidationError):
            MemoryStoreConfig.model_validate(wrong)


@dataclass
class Custom:
    values: list[int] = field(default_factory=list[int])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def mutables(value: Any) -> set[int]:
    """Return the object ids of the lists and dicts in a value."""
    if not isinstance(value, (dict, list)):
        return set()
    inner: Any = value.values() if isinstance(value, dict) else value
    return {id(value)}.union(*map(mutables, inner))


@settings(max_examples=50, deadline=None)
@given(json_values)
def test_a_copy_is_equal_and_shares_nothing(value: Any):
    copied = copy_value(value)
    assert copied == value
    assert not mutables(copied) & mutables(value)


def test_other_values_are_deep_copied():
    value = {"a": [Custom([1])], "b": ({"x": []},)}
    copied = copy_value(value)
    assert copied == value
    assert copied["a"][0].values is not value["a"][0].values
    assert copied["b"][0]["x"] is not value["b"][0]["x"]


def test_a_value_that_contains_itself_is_copied():
    value: dict[str, Any] = {"n": 1}
    value["self"] = value
    copied = copy_value(value)
    assert copied is not value
    assert copied["self"] is copied


def test_records_made_cheaply_are_records():
    rollout = Rollout(rollout_id="r", input={"a": []}, start_time=1.0)
    changed = evolve(rollout, {"status": "running"})
    assert changed == rollout.model_copy(update={"status": "running"})
    assert rollout.status == "queuing"
    attempt = Attempt(rollout_id="r", attempt_id="a", sequence_id=1, start_time=1.0)
    joined = attach_attempt(changed, attempt)
    validated = AttemptedRollout(**changed.model_dump(), attempt=attempt)
    assert joined == validated
    assert joined.model_dump_json() == validated.model_dump_json()
    assert joined.config is not changed.config
    assert isinstance(joined.config, RolloutConfig)
    joined.status = "failed"
    assert changed.status == "running"
    assert AttemptedRollout.model_validate_json(joined.model_dump_json()) == joined
