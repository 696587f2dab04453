"""The deprecated arguments of 0.3's trainer, and the second names of its constants."""

from __future__ import annotations

from typing import Any

import pytest

import agl_core as agl
from agl_adapters import TracerTraceToTriplet
from agl_core import semconv
from agl_legacy import Trainer, semconv as second_names
from agl_store_memory import InMemoryLightningStore
from agl_train import lightning_cli


def trainer(**options: Any) -> Trainer:
    return Trainer(strategy="shm", store=InMemoryLightningStore(), **options)


@pytest.mark.parametrize(
    ("old", "new", "read"),
    [
        ({"n_workers": 3}, {"n_runners": 2}, lambda t: t.n_runners),
        ({"max_tasks": 3}, {"max_rollouts": 2}, lambda t: t.max_rollouts),
    ],
)
def test_old_names_warn_and_new_names_win(old: Any, new: Any, read: Any) -> None:
    with pytest.warns(DeprecationWarning, match=next(iter(new))):
        assert read(trainer(**old)) == 3
    with pytest.warns(DeprecationWarning, match=next(iter(new))):
        assert read(trainer(**old, **new)) == 2


def test_other_old_names_warn() -> None:
    for old in ({"dev": True}, {"daemon": False}):
        with pytest.warns(DeprecationWarning, match=f"{next(iter(old))}"):
            trainer(**old)
    with pytest.warns(DeprecationWarning, match="triplet_exporter is deprecated; use adapter"):
        run = trainer(triplet_exporter=TracerTraceToTriplet())
    assert isinstance(run.adapter, TracerTraceToTriplet)


def test_old_names_are_options_of_a_command_line() -> None:
    words = ["--trainer.n-workers", "3", "--trainer.max-rollouts", "2"]
    with pytest.warns(DeprecationWarning, match="n_workers is deprecated; use n_runners"):
        made = lightning_cli(Trainer, args=words)
    assert (made.n_runners, made.max_rollouts) == (3, 2)
    assert isinstance(made, agl.Trainer)


def test_constants_have_their_names_of_0_3() -> None:
    assert second_names.AGL_ANNOTATION == semconv.SPAN_ANNOTATION == "agentlightning.annotation"
    assert second_names.AGL_VIRTUAL == "agentlightning.virtual"
    assert second_names.LightningResourceAttributes.ROLLOUT_ID.value == "agentlightning.rollout_id"
    assert second_names.LightningSpanAttributes.REWARD.value == "agentlightning.reward"
    assert second_names.RewardAttributes.REWARD_VALUE.value == "value"
    assert second_names.LinkAttributes.KEY_MATCH.value == "key_match"
    assert not {*second_names.__all__} & {*semconv.__all__}, "the core has one name each"
