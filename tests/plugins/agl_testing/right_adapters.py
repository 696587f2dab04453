"""Adapters that are right, of kinds that the suite must not refuse."""

from __future__ import annotations

from typing import Any

from agl_core.adapter import TraceAdapter


class AdaptsOnly(TraceAdapter[list]):
    """It leaves nothing out, so it does not count: it overrides `adapt` alone."""

    def adapt(self, source: Any, /):
        return [
            dict(span.attributes) for span in source if "gen_ai.prompt.0.role" in span.attributes
        ]


class OtherForm(TraceAdapter[list]):
    """It reads spans of a form of its own."""

    def adapt(self, source: Any, /):
        return [span.attributes["said"] for span in source if "said" in span.attributes]
