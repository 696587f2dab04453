"""A model as judge: it grades conversations by a rubric, and its grades become rewards."""

from agl_judge.agreement import Agreement, agreement
from agl_judge.judge import Judge, Verdict

__all__ = ["Agreement", "Judge", "Verdict", "agreement"]
