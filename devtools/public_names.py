"""Finds the public names of every package by reading the source, without importing it.

So the names of packages whose libraries are not installed are found, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from devtools import packages
from devtools.process import ROOT

PUBLIC_MODULES = (
    "env",
    "errors",
    "garbage",
    "hosts",
    "ids",
    "known_errors",
    "lazy",
    "main_thread",
    "semconv",
    "statistics",
    "status",
    "sync_calls",
    "waits",
    "wakeup",
)
"""Modules of the core that are public although they are not packages."""
CONFIG = re.compile(r'config="([\w.]+):(\w+)"')


class Module(NamedTuple):
    """A public module.

    Attributes:
        name: Dotted name.
        path: Its file.
        names: What it exports, sorted: the imports of its stub, or the names of ``__all__``.
    """

    name: str
    path: Path
    names: tuple[str, ...]


class Option(NamedTuple):
    """A field of the config model of a component, and its description."""

    model: str
    name: str
    description: str


def public_modules() -> list[Module]:
    """Return the core's public modules, without ``agl_core`` itself, and each plugin's package."""
    core = ROOT / packages.CORE_MODULE
    paths = sorted(p for p in core.glob("*/__init__.py") if not p.parent.name.startswith("_"))
    paths += [core / f"{name}.py" for name in PUBLIC_MODULES]
    paths += [package.source / "__init__.py" for package in packages.all_plugins()]
    modules = [Module(_dotted(path), path, _exports(path)) for path in paths]
    return sorted(module for module in modules if module.names)


def root_exports() -> dict[str, str]:
    """Return the module of each name that ``agl_core`` exports, from its stub."""
    found = _imports(ROOT / packages.CORE_MODULE / "__init__.pyi")
    return {name: f"{packages.CORE_MODULE}.{module}" for name, module in found.items()}


def options() -> Iterator[Option]:
    """Yield the options of every component, also of those whose libraries are not installed."""
    for hooks in sorted(ROOT.glob("plugins/*/src/*/hooks.py")):
        for module, name in sorted(set(CONFIG.findall(hooks.read_text()))):
            yield from _options_of(module, name)


def file_of(module: str) -> Path:
    """Return the file of a module of this repository.

    Raises:
        FileNotFoundError: There is none.
    """
    parts = module.split(".")
    top = ROOT if parts[0] == packages.CORE_MODULE else ROOT / "plugins" / parts[0] / "src"
    below = top.joinpath(*parts)
    for path in (below.with_suffix(".py"), below / "__init__.py"):
        if path.exists():
            return path
    raise FileNotFoundError(f"no file of the module {module}")


def _dotted(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "plugins":
        parts = parts[3:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _exports(path: Path) -> tuple[str, ...]:
    if (stub := path.with_suffix(".pyi")).exists():
        return tuple(sorted(_imports(stub)))
    for node in _tree(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return tuple(sorted(ast.literal_eval(node.value)))  # pyright: ignore
    return ()


def _imports(stub: Path) -> dict[str, str]:
    """Return the module of each name that a stub imports, relative to its package."""
    return {
        alias.name: str(node.module)
        for node in _tree(stub).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _options_of(module: str, name: str) -> Iterator[Option]:
    """Yield the options of a model, those of its bases in this repository included."""
    path = file_of(module)
    if (stub := path.with_suffix(".pyi")).exists():
        yield from _options_of(f"{module}.{_imports(stub)[name]}", name)
        return
    for node in _tree(path).body:
        if isinstance(node, ast.ImportFrom):
            imported = {alias.asname or alias.name: alias.name for alias in node.names}
            if name in imported and str(node.module).startswith("agl_"):
                yield from _options_of(str(node.module), imported[name])
        elif isinstance(node, ast.ClassDef) and node.name == name:
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id != "ComponentConfig":
                    yield from (
                        found._replace(model=name) for found in _options_of(module, base.id)
                    )
            yield from _fields(node)


def _fields(model: ast.ClassDef) -> Iterator[Option]:
    described = {
        match[1]: match[2]
        for match in re.finditer(r"^ +(\w+): (.+)$", ast.get_docstring(model) or "", re.MULTILINE)
    }
    for member, after in zip(model.body, [*model.body[1:], ast.Pass()], strict=True):
        if not isinstance(member, ast.AnnAssign) or not isinstance(member.target, ast.Name):
            continue
        name = member.target.id
        if name.startswith("_") or name == "model_config" or "ClassVar" in ast.unparse(member):
            continue
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = str(after.value.value)
        yield Option(model.name, name, text or described.get(name, ""))
