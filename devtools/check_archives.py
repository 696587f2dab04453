"""Check the wheels and sdists in a folder: ``check_archives.py DIST ROOT [LABEL...]``.

With labels, only those of these packages are checked.

Runs in the environment of the tools, which has ``packaging``.
"""

from __future__ import annotations

import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from packaging.metadata import Metadata

SDIST_FILES = {"PKG-INFO", "README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", ".gitignore"}
NO_ARCHIVES = {".gitignore", "constraints.txt"}
"""Files that a build leaves beside the archives."""
LARGEST_WHEEL = 3_000_000
"""Bytes; the largest one is the dashboard's or the core's."""
WHEEL_INFO = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def wheel_problems(wheel: Path, source: Path, project: Mapping[str, object]) -> Iterator[str]:
    """Yield the problems of a wheel.

    Args:
        wheel: The file.
        source: Folder of the module in the working tree; the wheel must hold all of its files.
        project: The ``[project]`` table of its ``pyproject.toml``.
    """
    module = source.name
    if (size := wheel.stat().st_size) > LARGEST_WHEEL:
        yield f"{size} bytes are more than {LARGEST_WHEEL}"
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        info = f"{stem_of(project)}.dist-info/"
        for name in names:
            if name.startswith(info):
                if name.removeprefix(info) not in WHEEL_INFO:
                    yield f"{name} does not belong into a wheel"
            elif not name.startswith(f"{module}/"):
                yield f"{name} lies outside of {module}/"
        yield from stray_files(name for name in names if not name.startswith(info))
        packed = {name for name in names if name.startswith(f"{module}/")}
        yield from (f"{name} is missing" for name in sorted(files_of(source) - packed))
        if f"{module}/py.typed" not in packed:
            yield "py.typed is missing"
        if f"{info}licenses/LICENSE" not in names:
            yield "LICENSE is missing"
        if f"{info}METADATA" in names:
            yield from metadata_problems(archive.read(f"{info}METADATA"), project)
        else:
            yield f"{info}METADATA is missing"


def stem_of(project: Mapping[str, object]) -> str:
    """Return how the names of a package's archives begin: ``agl_store_sqlite-0.1.0``."""
    return f"{label_of(project)}-{project['version']}"


def label_of(project: Mapping[str, object]) -> str:
    return str(project["name"]).replace("-", "_")


def files_of(source: Path) -> set[str]:
    """Return the files of a module, as a wheel names them."""
    return {
        path.relative_to(source.parent).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def stray_files(names: Iterator[str]) -> Iterator[str]:
    for name in names:
        path = PurePosixPath(name)
        if "__pycache__" in path.parts or path.suffix in {".pyc", ".db", ".log", ".orig", ".rej"}:
            yield f"{name} is a left-over"
        if path.name == "conftest.py" or path.match("tests/test_*.py"):
            yield f"{name} is a test"


def metadata_problems(raw: bytes, project: Mapping[str, object]) -> Iterator[str]:
    """Yield the problems of the core metadata (https://packaging.python.org, PEP 566, 639)."""
    try:
        metadata = Metadata.from_email(raw, validate=True)
    except ExceptionGroup as group:
        yield from (f"metadata: {error}" for error in group.exceptions)
        return
    if str(metadata.version) != project["version"]:
        yield f"metadata: version {metadata.version}, pyproject.toml has {project['version']}"
    if metadata.license_expression is None:
        yield "metadata: no licence expression"
    if not metadata.summary:
        yield "metadata: no summary"
    if not (metadata.description or "").strip():
        yield "metadata: no description; the README is missing"
    if metadata.description_content_type != "text/markdown":
        yield f"metadata: the description is {metadata.description_content_type}, not Markdown"
    if metadata.requires_python is None:
        yield "metadata: no requires-python"
    placeholder = [url for url in (metadata.project_urls or {}).values() if ".invalid" in url]
    yield from (f"metadata: {url} is a placeholder" for url in placeholder)


def sdist_problems(sdist: Path, source: Path, project: Mapping[str, object]) -> Iterator[str]:
    """Yield the problems of an sdist; the arguments are those of ``wheel_problems``."""
    module = source.name
    top = f"{stem_of(project)}/"
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
        names = {member.name.removeprefix(top) for member in members if member.isfile()}
        yield from (f"{member.name} is a link" for member in members if not member.isfile())
    sources = {name for name in names if name.startswith((f"{module}/", f"src/{module}/"))}
    yield from (f"{name} does not belong into an sdist" for name in names - sources - SDIST_FILES)
    yield from stray_files(iter(sources))
    needed = {"PKG-INFO", "README.md", "LICENSE", "pyproject.toml"}
    yield from (f"{name} is missing" for name in sorted(needed - names))
    packed = {name.removeprefix("src/") for name in sources}
    yield from (f"{name} is missing" for name in sorted(files_of(source) - packed))


def main(dist: Path, root: Path, labels: Sequence[str] = ()) -> int:
    problems: list[str] = []
    expected = set()
    for file in (root / "pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))):
        pyproject = tomllib.loads(file.read_text())
        project = pyproject["project"]
        label = label_of(project)
        if labels and label not in labels:
            continue
        module = pyproject.get("tool", {}).get("agl-dev", {}).get("module", label)
        source = file.parent / module if file.parent == root else file.parent / "src" / module
        wheel = dist / f"{stem_of(project)}-py3-none-any.whl"
        sdist = dist / f"{stem_of(project)}.tar.gz"
        expected |= {wheel.name, sdist.name}
        for archive, check in ((wheel, wheel_problems), (sdist, sdist_problems)):
            found = check(archive, source, project) if archive.exists() else ["was not built"]
            problems += [f"{archive.name}: {problem}" for problem in found]
    others = {path.name for path in dist.iterdir()} - expected - NO_ARCHIVES
    if not labels:
        problems += [f"{name}: belongs to no package" for name in sorted(others)]
    print("\n".join(problems) or f"checked {len(expected)} wheels and sdists")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
