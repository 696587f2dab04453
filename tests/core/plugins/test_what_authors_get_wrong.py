"""Data of plugins that is wrong: what the doctor says, and that a run goes on without it."""

from __future__ import annotations

import json
import time
from dataclasses import fields

import pytest
from hypothesis import given, strategies as st

from agl_adapters.vocabulary import Vocabulary
from agl_core.adapter import AgentName, Dialect, MessageShape
from agl_core.adapter._dialects import dialect_mistakes
from agl_core.errors import PluginBrokenError, PluginConflictError, PluginNotFoundError
from agl_core.plugins import (
    KIND_SPECS,
    AppSpec,
    CheckSpec,
    PluginRecord,
    ProviderSpec,
    Registry,
    get_registry,
)
from agl_core.store import LightningStoreCapabilities
from agl_doctor import run_plugin_checks, run_store_checks
from agl_store_memory import InMemoryLightningStore
from agl_testing import adapter, algorithm, execution, llm_server, metrics, proxy, store, tracer

RECORD = PluginRecord("provider", "x", "acme", "1.0", "ok", "", "acme")
HOOKS = """
from agl_core.adapter import Dialect
from agl_core.plugins import (
    CheckSpec, CommandSpec, ComponentSpec, DialectSpec, HookSpec, ProviderSpec, hookimpl
)

@hookimpl
def agl_{kind}():
    return {spec}
"""


def install(site, kind: str, spec: str, name: str = "x", **modules: str) -> None:
    site.install(
        f"acme-{kind}-{name}",
        entry_points={f"{kind}.{name}": f"acme_{kind}_{name}"},
        modules={
            f"acme_{kind}_{name}.py": HOOKS.format(kind=kind, spec=spec),
            **{f"{key}.py": text for key, text in modules.items()},
        },
    )


def examined(site, kind: str) -> tuple[str, str]:
    done = site.agl("plugins", "doctor", "--dist", f"acme-{kind}-x", "--json")
    (one,) = json.loads(done.stdout)
    return one["status"], one["note"]


# -- providers, apps, checks ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "mistake"),
    [
        ({"protocols": ("chats",)}, "no protocol 'chats'; did you mean 'chat'? (known: chat, "),
        ({"protocols": "chat"}, "protocols is 'chat', not a tuple of names"),
        ({"protocols": ()}, "protocols is (), not a tuple of names"),
        ({"protocols": (3,)}, "no protocol 3 (known: "),
        ({"api_base": "127.0.0.1:8000"}, "api_base '127.0.0.1:8000' is not a URL"),
        ({"api_base": None}, "api_base None is not a URL"),
        ({"auth": "Bearer"}, "auth 'Bearer' is not one of bearer, x-api-key"),
        ({"headers": {"a": "b"}}, "headers is a dict, not a tuple of pairs (name, value)"),
        ({"headers": (("x-acme", 7),)}, "('x-acme', 7) is not a header"),
        ({"headers": (("x acme", "7"),)}, "('x acme', '7') is not a header"),
        ({"headers": (("x-acme", "a\r\nb: c"),)}, "is not a header"),
        ({"headers": ("x-acme",)}, "'x-acme' is not a header"),
        ({"logprobs": "no"}, "logprobs is 'no', not True or False"),
    ],
)
def test_a_provider_with_wrong_values_is_broken(values, mistake):
    spec = ProviderSpec("x", **{"protocols": ("chat",), **values})
    with pytest.raises(PluginBrokenError) as caught:
        spec.resolve(RECORD)
    assert mistake in str(caught.value)
    assert str(caught.value).startswith("provider.x of acme 1.0 is broken: ")


def test_a_right_provider_is_itself():
    headers = (("x-acme-version", "7"), ("x-empty", ""))
    spec = ProviderSpec("x", protocols=("messages", "chat"), headers=headers, auth="x-api-key")
    assert spec.resolve(RECORD) is spec


@pytest.mark.parametrize("path", ["page", "/page/", "", None, "//", "/a b", "/a?b"])
def test_an_app_with_a_path_that_cannot_be_mounted_is_broken(path):
    with pytest.raises(PluginBrokenError, match="is not like '/name' or '/'"):
        AppSpec("x", path=path, factory="json:dumps").resolve(RECORD)


def test_an_app_with_an_unknown_scope_is_broken():
    with pytest.raises(PluginBrokenError, match="'all' is not one of public, read, admin"):
        AppSpec("x", path="/x", factory="json:dumps", scope="all").resolve(RECORD)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("reads_store", "check"), [(True, "json:dumps"), (False, "asyncio:sleep")])
def test_a_check_is_async_if_it_reads_a_store(reads_store, check):
    with pytest.raises(PluginBrokenError, match="an async function"):
        CheckSpec("x", check, reads_store=reads_store).resolve(RECORD)


# -- capabilities ---------------------------------------------------------------------------------


def test_capabilities_of_a_kind_are_the_flags_of_its_suite():
    suites = {
        "store": store.StoreSuite,
        "tracer": tracer.TracerSuite,
        "adapter": adapter.AdapterSuite,
        "algorithm": algorithm.AlgorithmSuite,
        "proxy": proxy.ProxySuite,
        "execution": execution.ExecutionSuite,
        "llm_server": llm_server.LLMServerSuite,
        "metrics": metrics.MetricsSuite,
    }
    for kind, suite in suites.items():
        also = set(LightningStoreCapabilities.__annotations__) if kind == "store" else set()
        assert KIND_SPECS[kind].capabilities == set(suite.FLAGS) | also, kind


def test_every_installed_plugin_claims_known_capabilities():
    registry = get_registry()
    for kind in KIND_SPECS:
        for record in registry.usable(kind):
            spec = registry.load(record)
            if hasattr(spec, "capabilities") and kind != "kind":
                assert not list(spec.remarks(record)), record.key


def test_the_doctor_warns_of_an_unknown_capability(site):
    spec = (
        "ComponentSpec('x', kind='tracer', factory='agl_core.tracer:UnsentSpans', "
        "capabilities=frozenset({'nestd'}), api=1)"
    )
    install(site, "tracer", spec)
    status, note = examined(site, "tracer")
    assert status == "warning"
    assert note.startswith("a tracer has no capability 'nestd'; did you mean 'nested'? (known: ")


# -- listeners ------------------------------------------------------------------------------------


def test_the_doctor_names_the_functions_that_lack_the_mark(site):
    listener = """
    from agl_core.plugins import hookimpl

    def run_started(mode): ...

    async def attempt_finished(reward): ...

    def helper(): ...

    @hookimpl
    def run_finished(error): ...
    """
    install(site, "hook", "HookSpec('x', module='acme_listener', api=1)", acme_listener=listener)
    status, note = examined(site, "hook")
    assert status == "warning"
    assert note == (
        "acme_listener.attempt_finished has the name of a hook but no @hookimpl; "
        "acme_listener.run_started has the name of a hook but no @hookimpl"
    )


def test_the_doctor_says_that_a_listener_listens_to_nothing(site):
    install(site, "hook", "HookSpec('x', module='acme_listener', api=1)", acme_listener="")
    assert examined(site, "hook") == ("warning", "acme_listener implements no hook")


# -- dialects -------------------------------------------------------------------------------------

odd = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(st.text(max_size=5), max_size=2),
    st.tuples(st.one_of(st.text(max_size=5), st.integers(), st.none())),
    st.builds(dict),
    st.just(MessageShape(role=("a",))),  # pyright: ignore[reportArgumentType]
    st.just((AgentName("a", where=("b",)),)),  # pyright: ignore[reportArgumentType]
    st.just((AgentName("a", where=("b", "c")),)),
    st.just((AgentName(7),)),  # pyright: ignore[reportArgumentType]
)


@given(st.dictionaries(st.sampled_from([field.name for field in fields(Dialect)]), odd, max_size=4))
def test_a_dialect_either_has_mistakes_or_reads_any_span(values):
    dialect = Dialect(**{"name": "odd", **values})
    if dialect_mistakes(dialect):
        return
    vocabulary = Vocabulary([dialect])
    attributes = {"a": 1, "b": "c", "gen_ai.request.model": "m"}
    assert vocabulary.is_model_call(attributes) in (True, False)
    vocabulary.agent_name("span", attributes)
    for key in attributes:
        vocabulary.split_root(key)
    assert vocabulary.proxy_tables is not None


@pytest.mark.parametrize(
    ("values", "mistake"),
    [
        ("marks='acme.reply'", "marks is 'acme.reply', not a tuple of texts"),
        ("marks=('a',), agents=('acme.agent',)", "agents has 'acme.agent', which is not an Agent"),
        ("marks=('a',), prompt_shape='openai'", "prompt_shape is a str, not a MessageShape"),
        ("marks=('a',), model=None", "model is None, not a tuple of texts"),
    ],
)
def test_a_dialect_of_the_wrong_shape_is_left_out_of_a_run(site, values, mistake):
    dialect = f"from agl_core.adapter import Dialect\nDIALECT = Dialect(name='x', {values})"
    spec = "DialectSpec('x', 'acme_dialect:DIALECT', api=1)"
    install(site, "dialect", spec, acme_dialect=dialect)
    status, note = examined(site, "dialect")
    assert status == "broken"
    assert mistake in note
    source = (
        "from agl_adapters import TracerTraceToTriplet\n"
        "from agl_core.types import Span\n"
        "span = Span.from_attributes(attributes={'acme.reply': 'x', 'gen_ai.response.id': 'r'})\n"
        "print(TracerTraceToTriplet().adapt([span]))"
    )
    done = site.python("-c", source)
    assert done.returncode == 0, done.stderr
    assert mistake in done.stderr


def test_the_doctor_warns_of_marks_that_match_nothing(site):
    source = "from agl_core.adapter import Dialect\nDIALECT = Dialect(name='x', marks=('a/b',))"
    install(site, "dialect", "DialectSpec('x', 'acme_d:DIALECT', api=1)", acme_d=source)
    assert examined(site, "dialect") == (
        "warning",
        "the mark 'a/b' is a path; a mark is the name of an attribute",
    )


# -- checks ---------------------------------------------------------------------------------------

CHECKS = """
import threading
from agl_core.doctor import Finding

def fine():
    yield Finding("ok", "fine", "all is well")

def hangs():
    threading.Event().wait(600)

def exits():
    raise SystemExit(3)

def half():
    yield Finding("ok", "half", "so far")
    raise RuntimeError("no cluster")

def text():
    return ["all is well"]

def nothing(): ...

async def waits(store, **options):
    import asyncio
    await asyncio.sleep(600)

async def reads(store, **options):
    return [Finding("ok", "reads", "read")]
"""


def install_checks(site, *names: str, reads_store: bool = False) -> None:
    for name in names:
        spec = f"CheckSpec({name!r}, 'acme_checks:{name}', reads_store={reads_store}, api=1)"
        install(site, "check", spec, name, acme_checks=CHECKS)


def only_acme(monkeypatch) -> None:
    records = [r for r in Registry.discover().records if r.dist.startswith("acme")]
    monkeypatch.setattr("agl_core.plugins._registry._registry", Registry(records))


def test_a_check_that_fails_or_hangs_is_named_and_the_others_run(here, monkeypatch):
    install_checks(here, "fine", "hangs", "exits", "half", "text", "nothing")
    only_acme(monkeypatch)
    found = {finding.ids: finding for finding in run_plugin_checks(timeout=0.5)}
    said = {finding.what.split(": ", 1)[0]: finding.what for finding in found.values()}
    assert "all is well" in said
    assert said["check.hangs of acme-check-hangs 1.0 did not finish in 0.5 s"]
    assert said["check.exits of acme-check-exits 1.0 failed"].endswith("SystemExit: 3")
    assert said["check.half of acme-check-half 1.0 failed"].endswith("no cluster")
    assert "which is not a Finding" in said["check.text of acme-check-text 1.0 failed"]
    assert "NoneType" in said["check.nothing of acme-check-nothing 1.0 failed"]
    late = found[("check.hangs",)]
    assert late.severity == "error"
    assert late.todo == ("upgrade acme-check-hangs, or AGL_DISABLE_PLUGINS=check.hangs")


async def test_a_store_check_that_hangs_is_named_and_the_others_run(here, monkeypatch):
    install_checks(here, "reads", "waits", reads_store=True)
    only_acme(monkeypatch)
    findings = await run_store_checks(InMemoryLightningStore(), timeout=0.2)
    assert [finding.what for finding in findings] == [
        "read",
        "check.waits of acme-check-waits 1.0 did not finish in 0.2 s",
    ]


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("acme")
def test_listed_names_are_proposed_before_those_of_others(here):
    here.install("acme-diska", entry_points={"store.diska": "nowhere"})
    here.install("other-store", entry_points={"store.other": "nowhere"})
    records = Registry.discover().records
    dists = ("agl-core", "acme", "acme-diska", "other-store")
    registry = Registry([record for record in records if record.dist in dists])
    for name, guess in (
        ("diskaa", "did you mean 'disk'? pip install acme-disk (installed: diska, other"),
        ("otherr", "did you mean 'other'? (installed: diska, other)"),
    ):
        with pytest.raises(PluginNotFoundError) as caught:
            registry.find("store", name)
        assert guess in str(caught.value)


@pytest.mark.usefixtures("acme")
def test_a_listed_name_cannot_be_taken_by_another_package(here):
    here.install("trees", entry_points={"store.tree": "nowhere"})
    registry = Registry.discover()
    taken = next(r for r in registry.of_kind("store") if r.dist == "trees")
    assert taken.status == "conflict"
    assert taken.error == "the name belongs to acme-tree; ask for 'trees:tree' to use this one"
    alone = Registry([taken])
    with pytest.raises(PluginConflictError, match="belongs to acme-tree"):
        alone.find("store", "tree")
    assert alone.find("store", "trees:tree") == taken


# -- plugins that import slowly -------------------------------------------------------------------


def test_the_help_does_not_wait_for_plugins_that_import_slowly(site):
    slow = "import time\ntime.sleep(30)\n"
    for name in ("aslow", "zslow"):
        spec = f"CommandSpec({name!r}, target='json:dumps', summary='Slow', api=1)"
        install(site, "command", spec, name)
        file = site.path / f"acme_command_{name}.py"
        file.write_text(slow + file.read_text())
    start = time.monotonic()
    done = site.agl("--help")
    assert time.monotonic() - start < 20
    assert done.returncode == 0
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    for name in ("aslow", "zslow"):
        assert rows[name].endswith("(imports slowly, see `agl plugins doctor`)")
    assert rows["version"].endswith("installed plugins")
