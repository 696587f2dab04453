"""Tests of a third-party distribution with a dialect, a provider, a check and a resource type.

It is installed in a separate directory; no code of this project refers to it.
"""

from __future__ import annotations

import json

import pytest

from agl_core.types import LLM, OpaqueResource, ResourcesUpdate
from agl_scripted import Reply, ScriptedModels

HOOKS = """
from agl_core.plugins import CheckSpec, DialectSpec, ProviderSpec, ResourceSpec, hookimpl

@hookimpl
def agl_dialect():
    return DialectSpec("acme", "acme_parts.dialect:DIALECT")

@hookimpl
def agl_provider():
    return ProviderSpec(
        "acme", protocols=("chat",), auth="x-api-key", headers=(("x-acme-version", "7"),)
    )

@hookimpl
def agl_check():
    return CheckSpec("acme", "acme_parts.check:check")

@hookimpl
def agl_resource():
    return ResourceSpec("acme_weights", "acme_parts.resource:AcmeWeights")
"""
DIALECT = """
from agl_core.adapter import AgentName, Dialect

DIALECT = Dialect(
    name="acme",
    marks=("acme.reply",),
    response_id=("acme.reply/id",),
    prompt_ids=("acme.reply/prompt",),
    response_ids=("acme.reply/tokens",),
    agents=(AgentName("acme.agent"),),
)
"""
CHECK = """
from agl_core.doctor import Finding

def check():
    yield Finding("warning", "acme", "the acme cluster is asleep", "wake it")
"""
RESOURCE = """
from typing import Literal
from agl_core.types import Resource

class AcmeWeights(Resource):
    resource_type: Literal["acme_weights"] = "acme_weights"
    path: str
"""

READ_SPANS = """
import json
from agl_adapters import TracerTraceToTriplet
from agl_core.types import Span

reply = json.dumps({"id": "r-1", "prompt": [1, 2], "tokens": [3]})
spans = [
    Span.from_attributes(attributes={"acme.agent": "clerk"}, span_id="a" * 16),
    Span.from_attributes(attributes={"acme.reply": reply}, span_id="b" * 16, parent_id="a" * 16),
]
(triplet,) = TracerTraceToTriplet(llm_call_match=None, agent_match="clerk").adapt(spans)
print(triplet.prompt["token_ids"], triplet.response["token_ids"], triplet.metadata["agent_name"])
"""
CALL_PROVIDER = """
import asyncio, sys, urllib.request
from agl_store_memory import InMemoryLightningStore
from agl_proxy_direct import DirectProxy

async def main(port):
    store = InMemoryLightningStore()
    claim = await store.start_rollout(input=1)
    params = {"model": "acme/big", "api_base": f"http://127.0.0.1:{port}", "api_key": "sesame"}
    proxy = DirectProxy(store=store, model_list=[{"model_name": "m", "litellm_params": params}])
    await proxy.start()
    try:
        url = proxy.as_resource().get_base_url(claim.rollout_id, claim.attempt.attempt_id)
        request = urllib.request.Request(
            f"{url}/chat/completions",
            b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}',
            {"content-type": "application/json"},
        )
        await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())
    finally:
        await proxy.stop()
    (span,) = (await store.query_spans(claim.rollout_id)).items
    print(span.attributes["gen_ai.request.model"])

asyncio.run(main(sys.argv[1]))
"""
WRITE_RESOURCE = """
import asyncio
from acme_parts.resource import AcmeWeights
from agl_core.plugins import build_component

async def main():
    store = build_component("store", {"type": "sqlite", "path": "runs.db"})
    await store.add_resources({"weights": AcmeWeights(path="out/7")})
    await store.close()

asyncio.run(main())
"""
READ_RESOURCE = """
import asyncio, sys
from agl_core.plugins import build_component

async def main():
    store = build_component("store", {"type": "sqlite", "path": "runs.db"})
    snapshot = await store.get_latest_resources()
    weights = snapshot.resources["weights"]
    print(type(weights).__name__, weights.path)
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def acme(site):
    kinds = {"dialect": "acme", "provider": "acme", "check": "acme", "resource": "acme_weights"}
    site.install(
        "acme-parts",
        entry_points={f"{kind}.{name}": "acme_parts.hooks" for kind, name in kinds.items()},
        modules={
            "acme_parts/__init__.py": "",
            "acme_parts/hooks.py": HOOKS,
            "acme_parts/dialect.py": DIALECT,
            "acme_parts/check.py": CHECK,
            "acme_parts/resource.py": RESOURCE,
        },
    )
    return site


def output(site, source: str, *arguments: str, **environ: str) -> str:
    done = site.python("-c", source, *arguments, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_adapter_reads_its_dialect(acme):
    assert output(acme, READ_SPANS) == "[1, 2] [3] clerk"


def test_the_direct_proxy_calls_its_provider(acme):
    with ScriptedModels([Reply("hello")]) as models:
        assert output(acme, CALL_PROVIDER, str(models.port)) == "m"
        (seen,) = models.requests
    assert seen.body["model"] == "big"
    headers = {name.lower(): value for name, value in seen.headers.items()}
    assert headers["x-api-key"] == "sesame"
    assert headers["x-acme-version"] == "7"
    assert "authorization" not in headers


def test_the_doctor_shows_its_check(acme):
    done = acme.agl("doctor", "--json", "--no-plugin-check")
    findings = [finding for finding in json.loads(done.stdout) if finding["check"] == "acme"]
    assert findings == [
        {
            "severity": "warning",
            "check": "acme",
            "what": "the acme cluster is asleep",
            "todo": "wake it",
            "ids": [],
        }
    ]


def test_a_store_keeps_its_resource_across_processes(acme):
    output(acme, WRITE_RESOURCE)
    assert output(acme, READ_RESOURCE) == "AcmeWeights out/7"
    # Where the plugin is disabled, the resource is opaque and the snapshot stays readable.
    off = {"AGL_DISABLE_PLUGINS": "acme-parts"}
    assert output(acme, READ_RESOURCE, **off) == "OpaqueResource out/7"


def test_all_four_are_listed(acme):
    done = acme.agl("plugins", "list", "--json")
    mine = [row for row in json.loads(done.stdout) if row["dist"] == "acme-parts"]
    assert sorted((row["kind"], row["name"], row["status"]) for row in mine) == [
        ("check", "acme", "ok"),
        ("dialect", "acme", "ok"),
        ("provider", "acme", "ok"),
        ("resource", "acme_weights", "ok"),
    ]


def test_a_broken_one_hides_no_other(acme):
    acme.install(
        "acme-broken",
        entry_points={"dialect.broken": "acme_broken", "check.broken": "acme_broken"},
        modules={
            "acme_broken.py": """
            from agl_core.plugins import CheckSpec, DialectSpec, hookimpl

            @hookimpl
            def agl_dialect():
                return DialectSpec("broken", "acme_parts.dialect:NOTHING")

            @hookimpl
            def agl_check():
                return CheckSpec("broken", "acme_broken:fail")

            def fail():
                raise RuntimeError("no cluster")
            """
        },
    )
    done = acme.python("-c", READ_SPANS)
    assert done.stdout.strip() == "[1, 2] [3] clerk"
    assert "dialect.broken of acme-broken 1.0 does not load" in done.stderr
    findings = json.loads(acme.agl("doctor", "--json", "--no-plugin-check").stdout)
    said = {finding["what"] for finding in findings if finding["check"] in ("acme", "check")}
    assert said == {
        "the acme cluster is asleep",
        "check.broken of acme-broken 1.0 failed: RuntimeError: no cluster",
    }


def test_a_resource_type_without_a_plugin_stays_opaque():
    stored = {
        "resources_id": "rs-1",
        "create_time": 1.0,
        "update_time": 1.0,
        "version": 1,
        "resources": {
            "llm": {"resource_type": "llm", "endpoint": "http://x/v1", "model": "m"},
            "other": {"resource_type": "of_nobody", "depth": 3},
        },
    }
    snapshot = ResourcesUpdate.model_validate(stored)
    assert isinstance(snapshot.resources["llm"], LLM)
    assert isinstance(snapshot.resources["other"], OpaqueResource)
    assert snapshot.model_dump(mode="json")["resources"]["other"] == stored["resources"]["other"]
