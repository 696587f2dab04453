"""Bodies that become far more than their bytes: refused, or read without an object per value."""

from __future__ import annotations

import asyncio
import json
import time
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agl_core.errors import InvalidArgumentError
from agl_core.types import EnqueueRolloutRequest, Span
from agl_serving import HTTPError
from agl_store_http import LightningStoreClient
from agl_store_http.server.bodies.number_lists import NumberLists
from agl_store_http.server.bodies.weighing import MAX_WEIGHT, check_weight

DENSE = {
    "numbers": "1",
    "booleans": "true",
    "empty texts": '""',
    "texts": '"ab"',
    "lists": "[]",
    "objects": "{}",
    "pairs": '{"a":1}',
    "two types": '1,"a"',
}


def span_json(ids: tuple[str, str], attributes: str, number: int = 1) -> str:
    span = Span.from_attributes(
        attributes={}, rollout_id=ids[0], attempt_id=ids[1], span_id=f"{number:016x}"
    )
    return span.model_dump_json().replace('"attributes":{}', f'"attributes":{attributes}', 1)


def dense(item: str) -> str:
    return "[" + ",".join([item] * (1_500_000 // (len(item) + 1))) + "]"


def batch(spans: str) -> str:
    return '{"spans":[' + spans + "]}"


JSON_TYPE = {"Content-Type": "application/json"}


async def timed(served: Any, path: str, body: str) -> tuple[Any, float]:
    started = time.process_time()
    answer = await served.send(
        "POST", f"/v1/agl{path}", data=BytesIO(body.encode()), headers=JSON_TYPE
    )
    return answer, time.process_time() - started


@pytest.mark.parametrize("name", DENSE)
async def test_dense_attributes_cost_little(served, name):
    ids = await served.claim()
    body = span_json(ids, f'{{"a":{dense(DENSE[name])}}}')
    answer, seconds = await timed(served, "/spans", body)
    assert answer.status == (201 if name == "numbers" else 413)
    assert seconds < 0.3  # it took 0.2 s to 1.2 s, client and server together


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/queues/rollouts/enqueue", '{"rollouts":[{"input":%s}]}'),
        ("/rollouts", '{"input":1,"metadata":{"a":%s}}'),
        ("/resources", '{"a":{"resource_type":"x","y":%s}}'),
        ("/workers/w", '{"unknown":%s}'),
        ("/rollouts/search", '{"rollout_id_in":%s}'),
        ("/waits/rollouts", '{"timeout":0,"rollout_ids":%s}'),
    ],
)
async def test_dense_bodies_of_every_route_are_refused(served, path, body, name):
    answer, _ = await timed(served, path, body % dense(DENSE[name]))
    assert answer.status == 413
    assert "too many values" in answer.json["detail"]


async def test_a_million_tokens_of_one_call_arrive(served):
    ids = await served.claim()
    tokens = [(n * 7919) % 150_000 for n in range(1_000_000)]
    logprobs = [-n / 1_000_000 for n in range(1_000_000)]
    attributes = json.dumps(
        {"ids": tokens, "logprobs": logprobs, "agentlightning.reward.0.value": 1}
    )
    answer, _ = await timed(served, "/spans", span_json(ids, attributes))
    assert answer.status == 201
    (span,) = await served.store.query_spans(*ids)
    assert span.attributes["ids"] == tokens
    assert span.attributes["logprobs"] == logprobs


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
async def test_a_million_tokens_of_many_calls_arrive(served, separators):
    ids = await served.claim()
    tokens = list(range(100_000, 110_000))
    attributes = json.dumps({"ids": tokens, "text": "[1,2]" * 500}, separators=separators)
    spans = [span_json(ids, attributes, number) for number in range(100)]
    answer, _ = await timed(served, "/spans/batch", batch(",".join(spans)))
    assert answer.json == {"stored": 100, "duplicates": []}
    stored = await served.store.query_spans(*ids)
    assert all(span.attributes["ids"] == tokens for span in stored)


async def test_a_reward_of_400_digits_is_refused(served):
    ids = await served.claim()
    attributes = '{"agentlightning.reward.0.value":' + "9" * 400 + "}"
    answer, _ = await timed(served, "/spans", span_json(ids, attributes))
    assert answer.status == 422
    assert "reward" in answer.json["detail"]


async def test_a_long_batch_in_pieces_is_the_batch(served):
    ids = await served.claim()
    rows = [{"n": n, "text": ',{"rollout_id":' * 20} for n in range(3_000)]
    spans = [span_json(ids, json.dumps(row), number) for number, row in enumerate(rows)]
    body = batch(",".join([*spans, spans[7]]))
    answer, _ = await timed(served, "/spans/batch", body)
    assert answer.json == {"stored": 3_000, "duplicates": [3_000]}
    stored = await served.store.query_spans(*ids)
    assert [span.attributes for span in stored] == rows
    broken = [*spans[:2_500], spans[0].replace('"sequence_id":0', '"sequence_id":"x"')]
    answer, _ = await timed(served, "/spans/batch", batch(",".join(broken)))
    assert answer.status == 422
    assert answer.json["detail"][0]["loc"] == ["body", "spans", 2_500, "sequence_id"]


@pytest.mark.parametrize(
    "body",
    [
        '{"spans":[{"rollout_id":1},%s]}',
        '{"spans":[%s],"spans":[]}',
        '{"spans":[%s]]}',
        '{"spans":[%s,]}',
        '{"spans":[,%s]}',
    ],
)
async def test_broken_long_batches_store_nothing(served, body):
    ids = await served.claim()
    spans = ",".join(span_json(ids, '{"a":"b"}', number) for number in range(3_000))
    answer, _ = await timed(served, "/spans/batch", body % spans)
    assert answer.status == 422 or answer.json == {"stored": 0, "duplicates": []}
    assert not await served.store.query_spans(*ids)


async def test_a_client_splits_a_batch_that_weighs_too_much(served):
    client = LightningStoreClient(served.url)
    tasks = [EnqueueRolloutRequest(input=[n] * 40_000) for n in range(12)]
    enqueued = await client.enqueue_many_rollouts(tasks)
    assert [rollout.input[0] for rollout in enqueued] == list(range(12))
    with pytest.raises(InvalidArgumentError, match="too many values"):
        await client.enqueue_rollout([1] * 400_000)
    assert len(await served.store.query_rollouts()) == 12
    await client.close()


# -- long lists of numbers -------------------------------------------------------------------------

NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
LONG = st.lists(NUMBERS, min_size=1, max_size=6).map(lambda numbers: numbers * 600)
TEXTS = st.sampled_from(["a", '":[', "]", '"', "\\", '\\":[' + "1," * 600 + "1]", "é:"])
KEYS = st.text('ab\\"é:[', min_size=1, max_size=4)
VALUES = st.recursive(LONG | TEXTS, lambda inner: st.dictionaries(KEYS, inner), max_leaves=6)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), spaced=st.booleans())
def test_what_is_cut_out_is_put_back(data, spaced):
    value = {key: data.draw(VALUES) for key in data.draw(st.sets(KEYS, max_size=4))}
    body = json.dumps(value, separators=(", ", ": ") if spaced else (",", ":")).encode()
    lists = NumberLists()
    cut = asyncio.run(lists.cut(body))
    assert json.loads(lists.put_back(json.dumps(json.loads(cut)).encode())) == value


@pytest.mark.parametrize(
    "end", ["1,]", "01]", "1,,1]", "--1]", "1e999]", "1.]", "+1]", "1 1]", "." + "1" * 70_000 + "]"]
)
def test_what_is_no_list_of_numbers_stays(end):
    body = b'{"ab":[%b%b}' % (b"1," * 600, end.encode())
    assert asyncio.run(NumberLists().cut(body)) == body


@pytest.mark.parametrize("text", ["a,b:[{", '",[', "\\", '\\"[', "\\\\,", "é[" * 7])
def test_texts_weigh_nothing(text):
    """Whichever of their characters a chunk ends with."""
    for before in range(8):
        body = json.dumps(["x" * before, text * (3 * 2**20 // len(text))], ensure_ascii=False)
        asyncio.run(check_weight(body.encode()))


def test_values_after_a_text_weigh():
    body = json.dumps(['\\"' * 100_000, [1] * (MAX_WEIGHT + 1)]).encode()
    with pytest.raises(HTTPError) as refused:
        asyncio.run(check_weight(body))
    assert refused.value.status == 413
