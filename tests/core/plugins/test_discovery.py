from __future__ import annotations

import sys

import pytest

from agl_core.plugins import PluginRecord, Registry
from agl_core.plugins._records import canonical_name

BOOM = "raise RuntimeError('a plugin was imported while plugins were listed')"


def records_of(dist: str) -> list[PluginRecord]:
    return [record for record in Registry.discover().records if record.dist == dist]


def only(dist: str) -> PluginRecord:
    (record,) = records_of(dist)
    return record


def test_the_core_is_no_plugin_itself():
    assert records_of("agl-core") == []


def test_a_record_says_all_that_metadata_says_and_nothing_is_imported(here):
    here.install(
        "Agl_Store.Demo",
        version="2.5",
        entry_points={"store.demo": "agl_demo.hooks"},
        modules={"agl_demo/__init__.py": BOOM, "agl_demo/hooks.py": BOOM},
        requires=["agl-core>=0.1", "numpy>=2"],
    )
    record = only("agl-store-demo")
    assert (record.kind, record.name, record.version) == ("store", "demo", "2.5")
    assert (record.status, record.error) == ("ok", "")
    assert record.requires == ("agl-core>=0.1", "numpy>=2")
    assert record.key == "store.demo"
    assert record.pin == "agl-store-demo:demo"
    assert "agl_demo" not in sys.modules


def test_records_are_sorted_by_kind_name_and_distribution(here):
    here.install("zeta", entry_points={"store.same": "zeta", "adapter.z": "zeta"})
    here.install("alpha", entry_points={"store.same": "alpha"})
    keys = [(record.kind, record.name, record.dist) for record in Registry.discover().records]
    assert keys == sorted(keys)
    assert ("store", "same", "alpha") in keys


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nodot", "is not named 'kind.name'"),
        ("store.Upper", "is not named 'kind.name'"),
        ("store.two.dots", "is not named 'kind.name'"),
        ("shop.thing", "names no kind"),
    ],
)
def test_a_bad_entry_point_name_is_a_broken_record(here, name, message):
    here.install("bad-name", entry_points={name: "bad_name"})
    record = only("bad-name")
    assert record.status == "broken"
    assert message in record.error


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("not a module", "is not the name of a module"),
        ("agl-demo.hooks", "is not the name of a module"),
        ("agl_demo:hooks", "has to name a module"),
        ("agl_demo..hooks", "is not the name of a module"),
    ],
)
def test_a_bad_entry_point_value_is_a_broken_record(here, value, message):
    here.install("bad-value", entry_points={"store.bad": value})
    record = only("bad-value")
    assert record.status == "broken"
    assert message in record.error


@pytest.mark.parametrize(
    ("requirement", "status"),
    [
        ("agl-core>=0.1,<0.2", "ok"),
        ("agl_core>=0.1", "ok"),
        ("AGL.core", "ok"),
        ("agl-core>=99", "incompatible"),
        ("agl-core<0.1", "incompatible"),
        ("agl-core>=99; python_version < '3'", "ok"),
        ("agl-core>=99; extra == 'gpu'", "ok"),
        ("agl-core (>=0.1", "incompatible"),
        ("agl-corelation>=99", "ok"),
    ],
)
def test_a_requirement_on_the_core_is_checked_without_an_import(here, requirement, status):
    here.install(
        "wants",
        entry_points={"store.wants": "wants_hooks"},
        modules={"wants_hooks.py": BOOM},
        requires=["numpy", requirement],
    )
    record = only("wants")
    assert record.status == status
    if requirement == "agl-core>=99":
        assert record.error == (
            "requires agl-core>=99, and 0.1.0 is running: upgrade wants and agl-core"
        )


def test_two_of_one_name_are_a_conflict_and_say_how_to_settle_it(here):
    here.install("one", version="1", entry_points={"store.x": "one_hooks"})
    here.install("two", version="2", entry_points={"store.x": "two_hooks"})
    one, two = only("one"), only("two")
    assert (one.status, two.status) == ("conflict", "conflict")
    assert one.error == "two 2 provides store.x too; pin one, e.g. 'one:x', or switch one off"


def test_a_rival_that_cannot_be_used_makes_no_conflict(here):
    here.install("one", entry_points={"store.x": "one_hooks"})
    here.install("two", entry_points={"store.x": "two_hooks"}, requires=["agl-core>=99"])
    assert (only("one").status, only("two").status) == ("ok", "incompatible")


def test_a_listed_name_is_not_shadowed(here):
    here.install("shade", entry_points={"command.version": "shade_hooks"})
    assert only("shade").status == "conflict"
    assert "'shade:version'" in only("shade").error
    found = Registry.discover().find("command", "version")
    assert found.dist == "agl-cli-kit"


def test_one_name_twice_in_a_distribution_is_broken(here):
    text = "[agl]\nstore.twice = twice_a\nstore.twice = twice_b\nstore.once = c\nstore.once = c\n"
    here.install("twice", entry_points_text=text)
    records = {(r.key, r.value): r.status for r in records_of("twice")}
    assert records == {
        ("store.once", "c"): "ok",
        ("store.twice", "twice_a"): "broken",
        ("store.twice", "twice_b"): "broken",
    }


def test_a_malformed_file_hides_no_other_plugin(here):
    here.install("garbled", entry_points_text="[agl]\nthis line has no equals sign\n")
    here.install("fine", entry_points={"store.fine": "fine_hooks"})
    assert only("fine").status == "ok"
    record = only("garbled")
    assert record.status == "broken"
    assert "cannot be read" in record.error


def test_metadata_without_a_name_hides_no_other_plugin(here):
    here.install("nameless", entry_points={"store.n": "n"}, metadata="Metadata-Version: 2.1\n")
    here.install("fine", entry_points={"store.fine": "fine_hooks"})
    assert only("fine").status == "ok"
    assert only("nameless").status == "broken"


def test_the_first_copy_on_the_path_counts(here, tmp_path, monkeypatch):
    here.install("copy", version="1", entry_points={"store.copy": "copy_hooks"})
    later = tmp_path / "later"
    (later / "copy-9.dist-info").mkdir(parents=True)
    (later / "copy-9.dist-info" / "METADATA").write_text("Name: copy\nVersion: 9\n")
    (later / "copy-9.dist-info" / "entry_points.txt").write_text("[agl]\nstore.copy = other\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(later)])
    assert only("copy").version == "1"


def test_canonical_name():
    assert canonical_name("Agl_Store--x.Y") == "agl-store-x-y"


def test_discovery_imports_nothing_that_a_usual_installation_does_not_need(site):
    usual = "agl-core<0.2,>=0.1"  # as build backends write what the scaffold requires
    extra = "agl-core[demo]<0.2,>=0.1; extra == 'test'"
    site.install("usual", entry_points={"store.usual": "x"}, requires=[usual, extra, "agl-x>=1"])
    source = (
        "import sys; from agl_core.plugins import get_registry\n"
        "get_registry().find('store', 'usual')\n"
        "print([name for name in ('asyncio', 'packaging', 'pydantic') if name in sys.modules])"
    )
    assert site.python("-c", source).stdout.strip() == "[]"


@pytest.mark.parametrize(
    "requires",
    [
        "agl-core<0.2,>=9",
        "agl-core <0.1",
        "AGL_Core>=9",
        "agl-core[demo]>=9",
        "agl-core>=9; python_version >= '3'",
        "agl-core (>=9)",
        "agl-core>=9; extra == 'x' or python_version >= '3'",
        "agl-core!",
    ],
)
def test_every_other_requirement_of_the_core_is_read(here, requires):
    here.install("needs", entry_points={"store.needs": "x"}, requires=[requires])
    (record,) = (record for record in Registry.discover().records if record.dist == "needs")
    assert record.status == "incompatible", record.error
