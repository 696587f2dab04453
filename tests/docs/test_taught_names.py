"""Each public name of the core is taught by a page, or serves two distributions."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from agl_legacy.names import HERE
from devtools import packages, public_names
from devtools.process import ROOT

LEGACY = "agl_legacy"
GENERATED = ("docs/settings.md", "docs/migration.md", "docs/legacy.md")
"""Pages that teach nobody a name: written from the code, or for code of 0.3 alone."""
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
VOCABULARIES = ("agl_core.errors", "agl_core.semconv")
"""Modules that are taught as a whole: what callers may catch, and the keys of the wire format."""
OTHERS: Mapping[str, str] = {
    "types in signatures of names that are taught": (
        "Assembler Catalogue ComponentLike InterceptorLike ModelProtocol PluginStatus"
    ),
    "called by other rooms of the core": (
        "MainThread copy_value fewer_collections load_resource_type"
    ),
    "what an engine of stores needs, of which there is one here": (
        "attach_attempt copy_attempt copy_config copy_rollout copy_snapshot copy_worker hold_span"
        " is_on join_attempt new_attempt_id new_resources_id new_rollout_id without_key"
    ),
    "what a store in memory needs": "check_size",
    "what strategies with threads need": "BundleThread CtrlC",
    "what strategies with processes need": "ERROR_TABLE EventSender run_beside_main_thread",
    "what a runner needs": "ProxyMove call_models_directly end_if_forked",
    "what a tracer on OpenTelemetry needs": "to_core_fields",
    "what a proxy needs": (
        "SpanParts can_translate fold_after_results lost_in_request"
        " lost_in_response stream_translator translate_request usage_attributes"
    ),
    "what a server of a store needs": "next_page",
    "what a replayer needs": "answering_operations comparable",
    "what the command and its checks need": (
        "DISABLE_VARIABLE EVERYTHING TRACE_VARIABLE api_remark failure_cause installed_version"
        " resolve_component"
    ),
    "what servers in processes need": "freeze_memory",
    "what tests of plugins need": "reset_listeners",
    "what tests of a gain need": "t_quantile",
}
"""Names that are public for another reason: all packages of a kind need them, and one is here."""


@cache
def taught() -> frozenset[str]:
    """Return the words in code of every page, example and template."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    pages += ROOT.glob("examples/**/README.md")
    texts = [text for page in pages if _teaches(page) for text in CODE.findall(page.read_text())]
    templates = ROOT.glob("plugins/agl_scaffold/src/agl_scaffold/templates/**/*.tmpl")
    texts += [file.read_text() for file in (*ROOT.glob("examples/**/*.py"), *templates)]
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def _teaches(page: Path) -> bool:
    path = page.relative_to(ROOT).as_posix()
    return path not in GENERATED and f"/{LEGACY}/" not in path


@cache
def users() -> Mapping[str, set[str]]:
    """Return the distributions whose code or tests use a name of the core, by name.

    The core is one of them, for names that another file of it imports.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for package in packages.everything():
        if package.label == LEGACY:
            continue
        files = [*package.source.rglob("*.py"), *package.tests.rglob("*.py")]
        if package == packages.core():  # what exports a name does not use it
            files = [file for file in files if file.name != "__init__.py"]
        for file in files:
            text = file.read_text(encoding="utf-8")
            if "agl_core" in text:
                for name in _used_in(ast.parse(text)):
                    found[name].add(package.label)
    return found


def _used_in(tree: ast.Module) -> Iterator[str]:
    modules: set[str] = set()
    attributes: list[tuple[str, str]] = []
    for node in ast.walk(tree):  # once: the sources have a million nodes
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name):
                attributes.append((node.value.id, node.attr))
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] == "agl_core":
                yield from (alias.name for alias in node.names)
                modules |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            of_core = (alias for alias in node.names if alias.name.split(".")[0] == "agl_core")
            modules |= {alias.asname or "agl_core" for alias in of_core}
    yield from (name for base, name in attributes if base in modules)


@cache
def alone() -> frozenset[str]:
    """Return the names that no page teaches and that only one distribution uses."""
    modules = [m for m in public_names.public_modules() if m.name.startswith("agl_core.")]
    known = taught().union(*(names for names in HERE.values()))
    return frozenset(
        name
        for module in modules
        for name in module.names
        if module.name not in VOCABULARIES and name not in known and len(users()[name]) < 2
    )


def test_every_name_is_taught_or_used_by_two_packages():
    excepted = Counter(name for names in OTHERS.values() for name in names.split())
    assert {name for name, count in excepted.items() if count > 1} == set()
    assert sorted(alone() - set(excepted)) == [], "teach them, make them private, or say why here"
    assert sorted(set(excepted) - alone()) == [], "these need no exception any more"
