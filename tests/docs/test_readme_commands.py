"""The commands in tables of the README name tests, benchmarks and packages that exist."""

from __future__ import annotations

import re
import shlex

from devtools.process import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"\| `python3 dev\.py (test|slow|bench|heavy) ([^`]+)`")
FOLDERS = {"bench": "tests/benchmark/bench_{}.py", "heavy": "plugins/{}"}


def test_the_commands_that_repeat_a_figure_exist():
    found = COMMAND.findall(README)
    assert len(found) >= 5
    for kind, words in found:
        for word in shlex.split(words):
            path = ROOT / FOLDERS.get(kind, "{}").format(word)
            assert path.exists(), f"python3 dev.py {kind} {words}"


def test_the_program_comes_before_the_commands_and_the_table():
    program = README.index("```python file=tour.py")
    commands = README.index("python3 dev.py demo")
    table = README.index("| measured |")
    assert program < commands < table
    assert "agl.Trainer(" in README[program:commands]
    assert ".fit(" in README[program:commands]
    assert "$ python tour.py" in README
