"""A judge: a model that grades conversations by a rubric, where no program can."""

from agl_judge.agreement import Agreement, agreement
from agl_judge.judge import Judge, Verdict

__all__ = ["Agreement", "Judge", "Verdict", "agreement"]
