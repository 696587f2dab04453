"""deploy/Dockerfile names what is in the repository."""

from __future__ import annotations

import re

from devtools.process import ROOT

DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()


def test_each_package_of_the_image_is_in_the_repository():
    (line,) = [line for line in DOCKERFILE.splitlines() if line.startswith("RUN pip install")]
    files = re.findall(r"-r (\S+)", line)
    named = [text for file in files for text in (ROOT / file).read_text().splitlines()]
    folders = [text for text in [*line.split(), *named] if text.startswith("./plugins/")]
    assert {"./plugins/agl_dashboard", "./plugins/agl_store_http"} <= set(folders)
    for folder in folders:
        assert (ROOT / folder / "pyproject.toml").is_file(), folder


def test_what_an_operator_keeps_beside_the_files_stays_out_of_the_image():
    lines = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    assert {"**/.env", "**/.env.*", "**/*.db", "**/*.db-*", ".git"} <= set(lines)
    assert not [line for line in lines if line.startswith("!")]  # nothing is let in again
