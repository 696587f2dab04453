"""A cluster for each test, and an image with an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_exec_k8s import KubernetesExecutionStrategy
from tests.plugins.agl_exec_k8s.cluster import Cluster

AGENT = """
import os, time
import agl_core as agl

@agl.rollout
def answer(task: dict, prompt_template: agl.PromptTemplate) -> float:
    print("works on", task["n"], flush=True)
    time.sleep(task.get("hold", 0))
    return float(os.environ.get("FACTOR", "1")) * task["n"] / 10
"""

TRAIN = """
agent = "agent.py:answer"
algorithm = "baseline"
train_dataset = [{n = 1}, {n = 2}, {n = 3}]
[resources.prompt]
type = "prompt_template"
template = "{n}"
engine = "f-string"
[store]
type = "sqlite"
path = "run.db"
# A runner in the image ignores these.
[strategy]
type = "k8s"
image = "agent:1"
"""

BROKEN = 'raise RuntimeError("the model key is missing")\n'


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster with the images ``agent:1`` and ``broken:1``; empty at the end."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Cluster(folder) as made:
        for name, agent in (("agent", AGENT), ("broken", BROKEN)):
            image = tmp_path / name
            image.mkdir()
            (image / "agent.py").write_text(agent)
            (image / "train.toml").write_text(TRAIN)
            made.images[f"{name}:1"] = image
        yield made


@pytest.fixture
def make_strategy(cluster: Cluster) -> Callable[..., KubernetesExecutionStrategy]:
    def make(n_runners: int = 1, **options: Any) -> KubernetesExecutionStrategy:
        defaults = {
            "image": "agent:1",
            "kubeconfig": str(cluster.kubeconfig),
            "graceful_timeout": 2,
            "terminate_timeout": 5,
        }
        return KubernetesExecutionStrategy(n_runners=n_runners, **(defaults | options))

    return make
