"""The gate: chooses the tests that a change can break, runs them, and records what ran.

:mod:`~devtools.gate.parts` divides the repository, :mod:`~devtools.gate.changes` says what differs
from the last gate, :mod:`~devtools.gate.selection` chooses test files with the recorded run of
:mod:`~devtools.gate.test_map`, :mod:`~devtools.gate.maker` makes jobs of them,
:mod:`~devtools.gate.plan` chooses those that fit into the time, and
:mod:`~devtools.gate.steps` runs these. :mod:`~devtools.gate.recording` records a run.
"""

from devtools.gate.command import main
from devtools.gate.recording import LIGHT, record, unmarked_data

__all__ = ["LIGHT", "main", "record", "unmarked_data"]
