"""The recipe with the real client library, and its fake of the service."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "sft_tinker"
PROMPT = [5, 6, 7, 8]


def test_training_on_the_best_samples_makes_better_weights(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, EXAMPLE / "main.py", "--folder", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    head, before, after = done.stdout.rstrip().rpartition("\n\n")[2].splitlines()
    assert head.split()[:3] == ["round", "rollouts", "reward"]
    assert before.endswith("fake/one-matrix")
    assert after.endswith("/sampler_weights/round-1")
    assert float(after.split()[2]) > float(before.split()[2]) + 0.4
    rows = [json.loads(line) for line in (tmp_path / "best-0.jsonl").read_text().splitlines()]
    assert {row["reward"] for row in rows} == {1.0}


@pytest.fixture(scope="module")
def base() -> Any:
    """A model that gives all tokens one probability."""
    import numpy as np

    from agl_tiny_model import build_tokenizer
    from fake_model import Base

    tokenizer = build_tokenizer(vocab_size=300)
    size = len(tokenizer)
    return Base(tokenizer, np.zeros((2 * size, size), np.float32))


@pytest.fixture(scope="module")
def url(base: Any) -> Iterator[str]:
    from fake_tinker import serving

    with serving(base) as url:
        yield url


@pytest.fixture(scope="module")
def service(url: str) -> Iterator[Any]:
    import tinker

    with tinker.ServiceClient(base_url=url, api_key="tml-fake") as service:
        yield service


@pytest.fixture
def client(service: Any) -> Any:
    from fake_tinker import MODEL

    return service.create_lora_training_client(MODEL, rank=4).result()


def test_only_sampled_tokens_have_a_weight_and_each_predicts_the_next():
    from tinker_service import to_datum

    datum = to_datum({"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]})
    assert datum.model_input.to_ints() == [5, 6, 7]
    assert list(datum.loss_fn_inputs["target_tokens"].data) == [6, 7, 8]
    assert list(datum.loss_fn_inputs["weights"].data) == [0.0, 1.0, 1.0]


def test_training_and_sampling_agree_on_tokens_and_probabilities(service: Any, client: Any):
    import tinker

    from tinker_service import to_datum

    def sample(sampler: Any) -> Any:
        params = tinker.SamplingParams(max_tokens=6)
        prompt = tinker.ModelInput.from_ints(PROMPT)
        return sampler.sample(prompt, 1, params).result().sequences[0]

    answer = [9, 10, client.get_tokenizer().eos_token_id]
    datum = to_datum({"input_ids": PROMPT + answer, "labels": [-100] * len(PROMPT) + answer})
    for _ in range(30):
        gradient = client.forward_backward([datum], "cross_entropy")
        client.optim_step(tinker.AdamParams(learning_rate=0.3)).result()
        gradient.result()
    path = client.save_weights_for_sampler("learned").result().path
    learned = sample(service.create_sampling_client(model_path=path).result())
    assert list(learned.tokens) == answer
    assert learned.stop_reason == "stop"
    found = client.forward([datum], "cross_entropy").result()
    logprobs = list(found.loss_fn_outputs[0]["logprobs"].data)[-len(answer) :]
    assert logprobs == pytest.approx(list(learned.logprobs), abs=1e-5)
    assert found.metrics["loss:sum"] == pytest.approx(-sum(logprobs), abs=1e-5)
    # Saved weights are a copy, and the base model has not changed.
    base = sample(service.create_sampling_client(base_model="fake/one-matrix").result())
    assert max(base.logprobs) < -5


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        ("importance_sampling", [6, 7], "no loss importance_sampling"),
        ("cross_entropy", [6, 7, 8], "must be as long as the input"),
    ],
)
def test_wrong_training_data_fails(client: Any, loss: str, targets: list[int], message: str):
    import tinker

    inputs = {"target_tokens": targets, "weights": [1.0] * len(targets)}
    datum = tinker.Datum(model_input=tinker.ModelInput.from_ints([5, 6]), loss_fn_inputs=inputs)
    with pytest.raises(tinker.RequestFailedError, match=message):
        client.forward_backward([datum], loss).result()
    with pytest.raises(tinker.RequestFailedError, match="without a gradient"):
        client.optim_step(tinker.AdamParams()).result()


def test_unknown_models_weights_options_and_keys_are_refused(url: str, service: Any):
    import tinker

    with pytest.raises(tinker.BadRequestError, match="cannot be fine-tuned"):
        service.create_lora_training_client("other/model").result()
    with pytest.raises(tinker.BadRequestError, match="no weights tinker://a/sampler_weights/b"):
        service.create_sampling_client(model_path="tinker://a/sampler_weights/b").result()
    sampler = service.create_sampling_client(base_model="fake/one-matrix").result()
    params = tinker.SamplingParams(max_tokens=1, top_k=3)
    with pytest.raises(tinker.BadRequestError, match="no sampling by top_k"):
        sampler.sample(tinker.ModelInput.from_ints(PROMPT), 1, params).result()
    with (
        tinker.ServiceClient(base_url=url, api_key="tml-wrong") as stranger,
        pytest.raises(tinker.AuthenticationError, match="unknown key"),
    ):
        stranger.create_sampling_client(base_model="fake/one-matrix").result()


def test_a_request_out_of_order_is_refused_and_one_sent_again_runs_once(base: Any, tmp_path: Path):
    from fake_tinker import MODEL, FakeTinker, Refusal

    def post(route: str, **request: Any) -> Any:
        body = json.dumps(request).encode()
        return fake.reply("POST", f"/api/v1/{route}", body, "application/json")

    fake = FakeTinker(base, str(tmp_path))
    session = post("create_session")["session_id"]
    post("create_model", session_id=session, model_seq_id=0, base_model=MODEL)
    save = {"model_id": f"{session}:train:0", "path": "first"}
    with pytest.raises(Refusal, match=r"request 2 of .* follows 0"):
        post("save_weights_for_sampler", **save, seq_id=2)
    first = post("save_weights_for_sampler", **save, seq_id=1)
    assert post("save_weights_for_sampler", **save, seq_id=1) == first
    with pytest.raises(Refusal, match="active"):
        post("retrieve_future", request_id=first["request_id"])
    done = post("retrieve_future", request_id=first["request_id"])
    assert done["path"] == f"tinker://{session}:train:0/sampler_weights/first"


def test_gradient_is_that_of_the_loss():
    import numpy as np

    from fake_model import features, gradient, logprobs

    dice = np.random.default_rng(0)
    weights = dice.normal(size=(12, 6))
    tokens, targets, counts = [1, 4, 2], np.array([4, 2, 5]), np.array([0.0, 1.0, 0.5])
    found, change = gradient(weights, tokens, targets, counts)

    def loss(weights: Any) -> float:
        rows = logprobs(weights, features(tokens, 6))[np.arange(3), targets]
        return -float(rows @ counts)

    assert -float(found @ counts) == pytest.approx(loss(weights))
    for row, column in ((4, 2), (7, 5), (8, 0), (1, 4)):
        step = np.zeros_like(weights)
        step[row, column] = 1e-5
        slope = (loss(weights + step) - loss(weights - step)) / 2e-5
        assert change[row, column] == pytest.approx(slope, abs=1e-4)
