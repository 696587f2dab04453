"""API keys and checkpoints: which tokens read them."""

from __future__ import annotations

from typing import Any

import pytest

from agl_core.types import LLM, Checkpoint
from agl_serving import mint_token

SECRET = "a-secret-of-the-operator"


class Case:
    def __init__(self, served: Any) -> None:
        self.served = served

    async def fill(self) -> None:
        store = self.served.store
        model = LLM(endpoint="http://x", model="m", api_key="sk-old")
        self.other = (await store.add_resources({"m": model})).resources_id
        model = LLM(
            endpoint="http://x",
            model="m",
            api_key="sk-own",
            sampling_parameters={"extra": [{"api_key": "sk-deep"}]},
        )
        self.own = (await store.add_resources({"m": model})).resources_id
        self.ids = await self.served.claim()
        self.run = "run:night"
        await store.update_resources(self.run, {"checkpoint": Checkpoint(state={"best": "x"})})

    async def get(self, scope: Any, path: str) -> Any:
        names = ("rollout_id", "attempt_id")
        bound = dict(zip(names, self.ids, strict=True)) if scope == "attempt" else {}
        token = mint_token(SECRET, scope, lifetime=60, **bound)
        headers = {"Authorization": f"Bearer {token}"}
        return await self.served.send("GET", f"/v1/agl/resources{path}", headers=headers)


@pytest.fixture
async def case(serve: Any) -> Case:
    made = Case(await serve(auth_token=SECRET))
    await made.fill()
    return made


@pytest.mark.parametrize("scope", ["algorithm", "runner"])
async def test_those_who_run_models_get_keys(case, scope):
    for path in ("", "/latest", f"/{case.own}"):
        assert b"sk-own" in (await case.get(scope, path)).body
    assert b"sk-old" in (await case.get(scope, f"/{case.other}")).body


async def test_a_read_token_gets_masks(case):
    for path in ("", "/latest", f"/{case.own}", f"/{case.other}"):
        answer = await case.get("read", path)
        assert b"sk-" not in answer.body
        assert b'"api_key":"***"' in answer.body
    assert (await case.get("read", f"/{case.run}")).status == 200


async def test_an_attempt_reads_its_own_snapshot_alone(case):
    for path in ("/latest", f"/{case.own}"):
        answer = await case.get("attempt", path)
        assert answer.json["resources"]["m"]["api_key"] == "sk-own"
    for path in (f"/{case.other}", f"/{case.run}", ""):
        answer = await case.get("attempt", path)
        assert answer.status == 403
    newest = LLM(endpoint="http://x", model="m", api_key="sk-newest")
    await case.served.store.add_resources({"m": newest})
    answer = await case.get("attempt", "/latest")
    assert answer.json["resources"]["m"]["api_key"] == "***"


async def test_events_and_rollouts_hold_no_keys(case):
    token = {"Authorization": f"Bearer {SECRET}"}
    answer = await case.served.send("GET", "/v1/agl/rollouts", headers=token)
    assert b"sk-" not in answer.body
