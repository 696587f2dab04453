"""Tests of the walk through the documents: what is typed, what lasts, what counts as a failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from devtools import packages, walk_docs
from devtools.pages import Command, blocks_of
from devtools.walk_docs import Walker

PAGE = """\
```python file=sub/data.py
VALUE = 42
```
```sh
export COLOUR=blue
cd sub
python3 dev.py test     # a step of its own
```
```python
from data import VALUE
```
```python
print(VALUE)
```
```console
$ echo "$COLOUR" in ${PWD##*/}
blue in sub
```
```toml norun
not = "walked"
```
"""


@pytest.fixture
def walker(tmp_path: Path) -> Walker:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    return Walker(tmp_path, venv)


def walk(walker: Walker, folder: Path, text: str) -> None:
    page = folder / "page.md"
    page.write_text(text)
    walker.walk(blocks_of(page))


def test_a_page_is_one_session(walker: Walker, tmp_path: Path) -> None:
    walk(walker, tmp_path, PAGE)
    assert (tmp_path / "sub/data.py").read_text() == "VALUE = 42\n"
    # The two Python blocks are one program, in the folder where the shell is.
    assert (tmp_path / "sub/page.py").read_text().count("VALUE") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```sh\nexit 3\n```\n", "exited with 3"),
        ("```python\nprint(1)\nraise SystemExit('no')\n```\n", "no"),
        ("```python\nimport warnings; warnings.warn('old')\n```\n", "UserWarning: old"),
        ("```console\n$ echo one\ntwo\n```\n", "wanted:\ntwo"),
        ("```sh serves\nfalse\n```\n", "exited with 1"),
    ],
)
def test_a_failure_names_the_command(
    walker: Walker, tmp_path: Path, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_docs, "SERVING", 0.3)
    with pytest.raises(SystemExit, match=message):
        walk(walker, tmp_path, text)


def test_a_server_is_ended_like_ctrl_c(
    walker: Walker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_docs, "SERVING", 1.0)  # enough for the trap to be set
    server = "trap 'echo SIGINT > seen; exit 130' INT; while true; do sleep 0.05; done"
    walk(walker, tmp_path, f'```sh serves\nbash -c "{server}"\n```\n')
    assert (tmp_path / "seen").read_text() == "SIGINT\n"


def test_dots_in_an_expected_output_match_anything() -> None:
    assert Command("x", "begin...\n... end").matches("begin 1\nmiddle\nthe end")
    assert not Command("x", "end\nbegin").matches("begin\nend")


def test_every_page_is_walked() -> None:
    names = [page.as_posix() for page in walk_docs.pages()]
    assert names[0] == "README.md"
    assert {"docs/migration.md", "docs/settings.md", "docs/plugins/store.md"} < set(names)


def test_readmes_say_how_to_install_from_a_clone() -> None:
    assert packages.readme_problems() == []
    (apo,) = (package for package in packages.all_plugins() if package.label == "agl_algo_apo")
    line = packages.install_line(apo)
    assert line.startswith("pip install . ./plugins/agl_adapters ./plugins/agl_algo_apo ")
    assert "./plugins/agl_prompt_search" in line
