"""Writes the sections of docs/runbook.md from the alert rules: ``python3 dev.py packages``."""

from __future__ import annotations

import re
from pathlib import Path

from agl_metrics_prometheus.alerts import runbook

PAGE = Path(__file__).resolve().parents[1] / "docs/runbook.md"
BLOCK = re.compile(r"(<!-- alerts: [^\n]*-->\n\n)(.*?)(\n<!-- end of the alerts -->)", re.DOTALL)


def rendered(page: str) -> str:
    """Return the page with the sections of today's rules."""
    return BLOCK.sub(lambda found: found[1] + runbook() + found[3], page)


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text("utf-8")), "utf-8")
