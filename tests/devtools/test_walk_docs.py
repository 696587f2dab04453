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
        ("```sh serves\necho Serving nowhere; sleep 60\n```\n", "Serving nowhere"),
        ("```sh serves\necho at http://127.0.0.1:1/page; sleep 60\n```\n", "did not answer"),
    ],
)
def test_a_failure_names_the_command(
    walker: Walker, tmp_path: Path, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_docs, "START_SECONDS", 0.5)
    with pytest.raises(SystemExit, match=message):
        walk(walker, tmp_path, text)


SERVER = """\
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        open("seen", "a").write(self.path + " ")
        self.send_response(200 if self.path == "/page" else 404)
        self.end_headers()

server = HTTPServer(("127.0.0.1", 0), Handler)
print(f"Serving at http://127.0.0.1:{server.server_port}PATH (Ctrl+C stops)", flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    open("seen", "a").write("SIGINT")
"""


@pytest.mark.parametrize(("path", "seen"), [("/page", "/page SIGINT"), ("", "/ SIGINT")])
def test_a_page_is_opened_and_its_server_ended_like_ctrl_c(
    walker: Walker, tmp_path: Path, path: str, seen: str
) -> None:
    (tmp_path / "server.py").write_text(SERVER.replace("PATH", path))
    walk(walker, tmp_path, "```sh serves\npython server.py\n```\n")
    assert (tmp_path / "seen").read_text() == seen


def test_a_page_that_is_not_there_fails(walker: Walker, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER.replace("PATH", "/other"))
    with pytest.raises(SystemExit, match=r"/other answered 404"):
        walk(walker, tmp_path, "```sh serves\npython server.py\n```\n")


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
