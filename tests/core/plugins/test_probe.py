from __future__ import annotations

import json
import os

import pytest

from agl_core.errors import PluginBrokenError
from agl_core.plugins import get_registry
from agl_doctor.examine import examine
from agl_doctor.probe import Report, main, probe
from agl_doctor.probe_server import CAN_FORK


@pytest.fixture
def plugin(here, spec_source):
    """Return a function that installs a plugin with a given module and returns its record."""

    def install(kind: str, source: str, **arguments: object):
        name = f"probed{kind.replace('_', '')}"
        here.install(
            f"agl-{name}",
            entry_points={f"{kind}.{name}": f"{name}_hooks"},
            modules={
                f"{name}_hooks.py": spec_source(kind, name=name, **arguments),
                f"{name}_impl.py": source,
            },
        )
        return get_registry().find(kind, name)

    return install


@pytest.mark.parametrize(
    ("kind", "arguments", "module"),
    [
        ("command", {"target": "probedcommand_impl:run"}, "import click\nrun = click.Command('x')"),
        ("app", {"path": "/x", "factory": "probedapp_impl:make"}, "def make(store): ..."),
        (
            "hook",
            {"module": "probedhook_impl"},
            "from agl_core.plugins import hookimpl\n@hookimpl\ndef run_started(mode): ...",
        ),
        (
            "adapter",
            {"factory": "probedadapter_impl:make"},
            "from agl_core.adapter import Adapter\ndef make(): return Adapter()",
        ),
    ],
)
def test_valid_plugins(plugin, kind, arguments, module):
    assert probe(plugin(kind, module, api=1, **arguments), build=True) == Report()


@pytest.mark.parametrize(
    ("kind", "arguments", "module", "message"),
    [
        ("command", {"target": "probedcommand_impl:run"}, "run = 3", "is a int, not a click co"),
        ("command", {"target": "probedcommand_impl:gone"}, "", "has no attribute 'gone'"),
        ("app", {"path": "/x", "factory": "probedapp_impl:app"}, "app = 3", "not a function"),
        ("hook", {"module": "probedhook_impl"}, "import agl_no_such", "No module named 'agl_no_"),
        (
            "hook",
            {"module": "probedhook_impl"},
            "from agl_core.plugins import hookimpl\n@hookimpl\ndef run_started(step): ...",
            "definition: run_started(step)",
        ),
        ("store", {"factory": "probedstore_impl:S"}, "S = 3", "is a int, not a class"),
        ("store", {"factory": "probedstore_impl:S"}, "class S: ...", "is not a LightningStore"),
        (
            "store",
            {"factory": "probedstore_impl:S"},
            "def S(): return 3",
            "made a int, not a",
        ),
        (
            "store",
            {"factory": "probedstore_impl:S", "config": "probedstore_impl:C"},
            "class C: ...",
            "is not a pydantic model",
        ),
        (
            "store",
            {"factory": "probedstore_impl:S", "config": "probedstore_impl:C"},
            "from pydantic import BaseModel\nclass C(BaseModel): ...",
            "lets unknown options pass",
        ),
    ],
)
def test_invalid_plugins(plugin, kind, arguments, module, message):
    with pytest.raises(PluginBrokenError) as caught:
        probe(plugin(kind, module, **arguments), build=True)
    assert message in str(caught.value)


NEEDY = """
from pydantic import BaseModel
from agl_store_memory import InMemoryLightningStore
class C(BaseModel, extra='forbid'):
    path: str
class S(InMemoryLightningStore):
    def __init__(self, path): raise RuntimeError("built")
"""


def test_what_needs_options_is_not_built(plugin):
    record = plugin("store", NEEDY, factory="probedstore_impl:S", config="probedstore_impl:C")
    note = probe(record, build=True).note
    assert note == "not built, as it needs options (store.probedstore.path: is missing)"
    assert probe(record, build=False).note == ""


@pytest.mark.parametrize(
    ("arguments", "status"),
    [({}, "broken"), ({"api": 2}, "incompatible")],
)
def test_the_report(plugin, tmp_path, arguments, status):
    record = plugin("store", "class S: ...", factory="probedstore_impl:S", **arguments)
    report = tmp_path / "report.json"
    main(str(report), json.dumps(record.as_json()), "build")
    said = json.loads(report.read_text())
    assert said["status"] == status
    assert said["seconds"] > 0


def test_the_report_of_a_plugin_that_raises_a_base_exception(plugin, tmp_path):
    module = (
        "from agl_core.adapter import Adapter\n"
        "class S(Adapter):\n    def __new__(cls): raise SystemExit(9)\n"
    )
    record = plugin("adapter", module, factory="probedadapter_impl:S")
    main(str(tmp_path / "r.json"), json.dumps(record.as_json()), "build")
    assert "SystemExit: 9" in json.loads((tmp_path / "r.json").read_text())["note"]


def test_a_pinnable_conflict_is_examined_and_stays_a_conflict(here, spec_source):
    for dist in ("one", "two"):
        factory = "agl_store_memory:InMemoryLightningStore"
        source = spec_source("store", name="both", factory=factory)
        here.install(
            dist, entry_points={"store.both": f"{dist}_hooks"}, modules={f"{dist}_hooks.py": source}
        )
    records = [r for r in get_registry().records if r.key == "store.both"]
    findings = examine(records, timeout=60)
    assert [(f.dist, f.status) for f in findings] == [("one", "conflict"), ("two", "conflict")]
    assert all(f.seconds > 0 for f in findings)


@pytest.mark.skipif(not CAN_FORK, reason="probes are no children of a common process")
def test_a_plugin_that_kills_the_parent_of_its_process_harms_no_other(
    here, spec_source, monkeypatch
):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # all have one parent
    store = "from agl_store_memory import InMemoryLightningStore as S\n"
    bodies = {"killer": "import os\nos.kill(os.getppid(), 9)\n" + store, "other": store}
    for name, body in bodies.items():
        hooks = spec_source("store", name=name, api=1, factory=f"{name}_impl:S")
        here.install(
            f"agl-{name}",
            entry_points={f"store.{name}": f"{name}_hooks"},
            modules={f"{name}_hooks.py": hooks, f"{name}_impl.py": body},
        )
    records = [get_registry().find("store", name) for name in bodies]
    _, other = examine(records, build=False, timeout=60)
    assert (other.key, other.status) == ("store.other", "ok"), other.note
