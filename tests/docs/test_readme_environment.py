"""The README installs into an environment that it names."""

from __future__ import annotations

from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_environment_is_made_and_entered_before_anything_is_installed() -> None:
    lines = README.read_text().splitlines()
    made = lines.index("python3 -m venv agl-env")
    entered = lines.index(". agl-env/bin/activate")
    installs = [number for number, line in enumerate(lines) if line.startswith("pip install")]
    assert made < entered < min(installs)
    assert "agl-env/" in (README.parent / ".gitignore").read_text().splitlines()
