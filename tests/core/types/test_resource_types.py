import json
import logging
import subprocess
import sys
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from agl_core.errors import MissingDependencyError, PluginNotFoundError
from agl_core.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    OpaqueResource,
    PromptTemplate,
    ProxyLLM,
    Resource,
    ResourcesUpdate,
    register_resource_type,
    resource_types,
)


@register_resource_type
class SavedWeights(Resource):
    """A resource type for the tests."""

    resource_type: Literal["test_saved_weights"] = "test_saved_weights"
    path: str


def update(**resources: object) -> ResourcesUpdate:
    return ResourcesUpdate.model_validate(
        {
            "resources_id": "rs-1",
            "create_time": 1,
            "update_time": 2,
            "version": 1,
            "resources": resources,
        }
    )


def test_resources_come_back_as_their_own_types_and_in_order():
    before = update(
        b=LLM(endpoint="http://h/v1", model="m"),
        a=PromptTemplate(template="{x}", engine="f-string"),
        c=ProxyLLM(endpoint="http://p/v1", model="m", sampling_parameters={"temperature": 0}),
        d=SavedWeights(path="file"),
    )
    after = ResourcesUpdate.model_validate_json(before.model_dump_json())
    assert list(after.resources) == ["b", "a", "c", "d"]
    assert [type(value) for value in after.resources.values()] == [
        LLM,
        PromptTemplate,
        ProxyLLM,
        SavedWeights,
    ]
    assert after == before


def test_an_unknown_type_survives_instead_of_failing_the_snapshot():
    raw = {"resource_type": "from_the_future", "weights": [1, 2], "nested": {"a": None}}
    snapshot = update(known=LLM(endpoint="e", model="m"), novel=raw)
    assert isinstance(snapshot.resources["novel"], OpaqueResource)
    assert json.loads(snapshot.model_dump_json())["resources"]["novel"] == raw


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        ({"endpoint": "e"}, "resource_type"),
        ({"resource_type": 3}, "resource_type"),
        ("llm", "resource_type"),
        ({"resource_type": "llm", "endpoint": "e"}, r"resources\.x\.model"),
        ({"resource_type": "prompt_template", "template": "t"}, r"resources\.x\.engine"),
    ],
)
def test_a_bad_resource_is_refused_with_its_path(resource, message):
    with pytest.raises(ValidationError, match=message):
        update(x=resource)


def test_two_classes_cannot_share_a_resource_type():
    class Thief(Resource):
        resource_type: Literal["llm"] = "llm"

    with pytest.raises(ValueError, match="already belongs to LLM"):
        register_resource_type(Thief)


def test_a_resource_class_needs_a_constant_type():
    class Vague(Resource):
        pass

    with pytest.raises(ValueError, match="string default"):
        register_resource_type(Vague)


def test_the_registered_types_are_handed_out_as_a_copy():
    resource_types().clear()
    assert resource_types()["llm"] is LLM


def test_known_types_are_in_the_json_schema():
    text = json.dumps(ResourcesUpdate.model_json_schema())
    for name in ("LLM", "ProxyLLM", "PromptTemplate", "OpaqueResource"):
        assert f'"title": "{name}"' in text


# -- LLM and ProxyLLM ---------------------------------------------------------------------------


def test_an_llm_ignores_the_ids():
    assert LLM(endpoint="http://h/v1", model="m").get_base_url("ro", "at") == "http://h/v1"


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://h:1/v1", "http://h:1/rollout/R/attempt/A/v1"),
        ("http://h:1/v1/", "http://h:1/rollout/R/attempt/A/v1"),
        ("http://h:1", "http://h:1/rollout/R/attempt/A"),
        ("http://h:1/", "http://h:1/rollout/R/attempt/A"),
        ("http://h:1/x/v1", "http://h:1/x/rollout/R/attempt/A/v1"),
    ],
)
def test_a_proxy_llm_puts_the_ids_into_its_url(endpoint, url):
    assert ProxyLLM(endpoint=endpoint, model="m").get_base_url("R", "A") == url


@pytest.mark.parametrize("ids", [("R", None), (None, "A"), (1, 2)])
def test_a_proxy_llm_takes_both_ids_or_neither(ids):
    llm = ProxyLLM(endpoint="http://h/v1", model="m")
    assert llm.get_base_url() == "http://h/v1"
    with pytest.raises(ValueError, match="both"):
        llm.get_base_url(*ids)


def test_with_attempted_rollout_gives_a_plain_llm():
    attempt = Attempt(rollout_id="R", attempt_id="A", sequence_id=1, start_time=0)
    rollout = AttemptedRollout(rollout_id="R", input=None, start_time=0, attempt=attempt)
    llm = ProxyLLM(
        endpoint="http://h/v1", model="m", api_key="k", sampling_parameters={"top_p": 1}
    ).with_attempted_rollout(rollout)
    assert type(llm) is LLM
    assert llm.model_dump() == {
        "resource_type": "llm",
        "endpoint": "http://h/rollout/R/attempt/A/v1",
        "model": "m",
        "api_key": "k",
        "sampling_parameters": {"top_p": 1},
    }


def test_reading_the_endpoint_of_a_proxy_llm_warns(caplog):
    llm = ProxyLLM(endpoint="http://h/v1", model="m")
    with caplog.at_level(logging.WARNING):
        llm.get_base_url("R", "A")
        llm.model_dump_json()
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert llm.endpoint == "http://h/v1"
    assert "get_base_url" in caplog.text


# -- PromptTemplate -------------------------------------------------------------------------------


def test_the_built_in_engine_fills_placeholders():
    assert PromptTemplate(template="{a}-{b!r}", engine="f-string").format(a=1, b="x") == "1-'x'"


def test_a_missing_placeholder_is_an_error():
    with pytest.raises(KeyError):
        PromptTemplate(template="{a}", engine="f-string").format()


def test_the_poml_engine_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "poml", None)
    with pytest.raises(MissingDependencyError, match="pip install 'poml'"):
        PromptTemplate(template="<p>x</p>", engine="poml").format()


def test_an_engine_is_the_installed_plugin_of_its_name(agl_registry, tmp_path, monkeypatch):
    (tmp_path / "shout_hooks.py").write_text(
        "from agl_core.plugins import TemplateEngineSpec, hookimpl\n"
        "def fill(template, values):\n    return (template % values).upper()\n"
        "@hookimpl\n"
        "def agl_template_engine():\n"
        "    return TemplateEngineSpec('shout', fill='shout_hooks:fill', api=1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    agl_registry.add("template_engine.shout", "shout_hooks")
    assert PromptTemplate(template="in %(city)s", engine="shout").format(city="Rome") == "IN ROME"


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ("jinjja", "there is no template engine 'jinjja'; did you mean 'jinja'? (engines: "),
        ("shoot", "there is no template engine 'shoot'; did you mean 'shout'? (engines: "),
        ("", "there is no template engine '' (engines: f-string, jinja, poml, shout)"),
    ],
)
def test_an_engine_that_is_not_there_is_refused(agl_registry, engine, line):
    agl_registry.add("template_engine.shout", "shout_hooks")
    with pytest.raises(ValidationError) as caught:
        PromptTemplate(template="t", engine=engine)
    assert line in str(caught.value)


def test_a_stored_template_is_readable_where_its_engine_is_not_installed(agl_registry):
    raw = {"resource_type": "prompt_template", "template": "t", "engine": "shout"}
    stored: Any = update(x=raw).resources["x"]
    assert stored.model_dump() == raw
    with pytest.raises(PluginNotFoundError, match="no template_engine 'shout' is installed"):
        stored.format()


def test_the_models_import_no_heavy_library():
    code = (
        "import sys, agl_core.types; "
        "print([m for m in ('opentelemetry', 'jinja2', 'aiohttp', 'fastapi') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
