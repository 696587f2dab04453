"""Adds the example's folder to the import path, since its modules import each other by name."""

import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "sft_tinker"
sys.path.insert(0, str(EXAMPLE))
