"""How a session starts Ray on a CPU; its own tests run real sessions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agl_verl_cpu import fork_server

pytestmark = [
    pytest.mark.skipif(not fork_server.available(), reason="the fork server needs Linux"),
    pytest.mark.filterwarnings("ignore"),  # of verl and Ray, when they are imported
]

Start = Callable[..., Any]


@pytest.fixture
def start_ray(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> Start:
    from agl_algo_verl import VERLConfig, session
    from agl_algo_verl.settings import compose

    given: list[dict[str, Any]] = []
    monkeypatch.setattr(session.ray, "init", lambda **options: given.append(options))
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(fork_server, "start", lambda: "a fork")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("TRANSFER_QUEUE_ENABLE", "1")

    def start(**ray_init: Any) -> str | None:
        config = {
            "trainer": {"device": "cpu"},
            "data": {"train_batch_size": 4},
            "algorithm": {"adv_estimator": "grpo"},
            "actor_rollout_ref": {
                "model": {"path": str(tiny_model)},
                "actor": {"ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 4},
                "rollout": {"log_prob_micro_batch_size_per_gpu": 4},
            },
            "ray_kwargs": {"ray_init": ray_init},
        }
        assert session._start_ray(compose(VERLConfig(config=config)), {})
        return given[-1]["runtime_env"].get("py_executable")

    return start


def test_its_workers_are_forks(start_ray: Start):
    assert start_ray() == "a fork"


def test_a_given_command_starts_them_instead(start_ray: Start):
    assert start_ray(runtime_env={"py_executable": "python3"}) == "python3"


def test_a_running_cluster_starts_them_itself(start_ray: Start, monkeypatch: pytest.MonkeyPatch):
    assert start_ray(**{"+address": "auto"}) is None
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    assert start_ray() is None
