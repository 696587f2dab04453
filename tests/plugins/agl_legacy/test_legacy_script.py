"""``python -m agl_legacy script.py`` runs a script as ``python script.py`` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LEGACY = (sys.executable, "-m", "agl_legacy")


def run(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=60, cwd=folder, check=False
    )


@pytest.mark.parametrize(
    "body",
    [
        "import sys, helper\nprint(sys.argv, sys.path[0], __name__, __file__, helper.VALUE)",
        "import sys\nprint(sys.modules['__main__'].__dict__ is globals(), __spec__, __package__)",
        "import sys\nsys.exit(7)",
        "raise SystemExit('a reason')",
        "def fail():\n    1 / 0\n\ntry:\n    fail()\nexcept ZeroDivisionError:\n    [][1]",
        "x = (",
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)",
        "import warnings\nwarnings.warn('old', DeprecationWarning)",
        "import atexit\natexit.register(lambda: print('at exit', __name__))",
        "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A())).__class__)",
    ],
    ids=lambda body: body.splitlines()[-1],
)
def test_output_traceback_and_exit_code_are_as_usual(body: str, tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "helper.py").write_text("VALUE = 42\n")
    (folder / "script.py").write_text(body + "\n")
    words = ("scripts/script.py", "--flag", "value")
    here = run(*LEGACY, *words, folder=tmp_path)
    usual = run(sys.executable, *words, folder=tmp_path)
    assert (here.returncode, here.stdout) == (usual.returncode, usual.stdout)
    assert here.stderr == usual.stderr


def test_modules_are_run_with_the_switch_m(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import sys, agentlightning\nprint(sys.argv[1:], __spec__.name)\nraise KeyError(1)\n"
    )
    done = run(*LEGACY, "-m", "job", "--x", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "['--x'] job\n")
    assert done.stderr.splitlines()[1].startswith(f'  File "{tmp_path / "job.py"}", line 3')


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--help"], 0, "usage: python -m agl_legacy SCRIPT.py"),
        ([], 2, "usage: python -m agl_legacy SCRIPT.py"),
        (["nowhere.py"], 2, "agl_legacy: cannot open nowhere.py: No such file or directory"),
        (["-x"], 2, "agl_legacy: unknown option -x; see --help"),
        (["-m"], 2, "agl_legacy: -m needs the name of a module"),
    ],
)
def test_what_cannot_be_run(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    done = run(*LEGACY, *words, folder=tmp_path)
    assert done.returncode == code
    assert (done.stdout + done.stderr).startswith(said)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes_have_the_import(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing as mp\n"
        "import agentlightning as agl  # the child imports this file first\n"
        "def work(n):\n"
        "    import agentlightning.utils.id\n"
        "    return n + len(agl.semconv.AGL_REWARD)\n"
        "if __name__ == '__main__':\n"
        f"    with mp.get_context({method!r}).Pool(1) as pool:\n"
        "        print(pool.map(work, [1]))\n"
    )
    done = run(*LEGACY, script, folder=tmp_path)
    assert done.stdout == f"[{1 + len('agentlightning.reward')}]\n", done.stderr
    assert done.stderr == ""


def test_python_safe_path_is_kept(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "script.py").write_text("import helper\n")
    done = run(sys.executable, "-P", "-m", "agl_legacy", "script.py", folder=tmp_path)
    assert "No module named 'helper'" in done.stderr
    assert os.fspath(tmp_path) not in done.stdout
