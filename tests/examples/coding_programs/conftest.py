"""Adds the example's folder to the import path, since its modules import each other by name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "coding_programs"))
