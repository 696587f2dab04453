"""A stand-in for huggingface_hub: files in the folders of its cache."""

from __future__ import annotations

import os
from pathlib import Path


def try_to_load_from_cache(
    repo_id: str, filename: str, cache_dir: str | None = None, revision: str | None = None
) -> str | None:
    cache = Path(cache_dir or os.environ["HF_HUB_CACHE"])
    folder = cache / f"models--{repo_id.replace('/', '--')}"
    ref = folder / "refs" / (revision or "main")
    if not ref.is_file():
        return None
    file = folder / "snapshots" / ref.read_text() / filename
    return str(file) if file.is_file() else None
