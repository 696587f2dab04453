"""The example's modules import each other by name, as a script's do."""

import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "sft_trl"
sys.path.insert(0, str(EXAMPLE))
