"""What the certificates of many rows say, in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_core.adapter._trajectory import TrajectoryRow

__all__ = ["CertificateSummary"]


@dataclass(slots=True)
class CertificateSummary:
    """Counts over :class:`~agl_core.adapter.Certificate`. Summaries add up.

    ::

        >>> print(CertificateSummary.of(rows))
        14 rows of 5210 tokens, 1890 to train on; token ids in all, logprobs in all;
        model versions: step-1 in 7, step-2 in 8, several in 1; breaks: 2 (history truncated)

    Attributes:
        rows: How many rows.
        tokens: Their tokens.
        trained_tokens: Tokens that a model sampled in them (mask 1).
        with_ids: Rows without a gap of calls that have no token ids.
        with_logprobs: Rows with the log-probability of every sampled token.
        mixed: Rows of several model versions, and so of several policies.
        versions: Rows by model version; a row of several counts in each.
        breaks: Rows by why they do not continue an earlier one.
    """

    rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    with_ids: int = 0
    with_logprobs: int = 0
    mixed: int = 0
    versions: Counter[str] = field(default_factory=Counter[str])
    breaks: Counter[str] = field(default_factory=Counter[str])

    @classmethod
    def of(cls, rows: Iterable[TrajectoryRow]) -> CertificateSummary:
        """Return the summary of some rows."""
        made = cls()
        for row in rows:
            certificate = row.certificate
            made.rows += 1
            made.tokens += len(row.token_ids)
            made.trained_tokens += sum(row.mask)
            made.with_ids += certificate.ids_present
            made.with_logprobs += certificate.logprobs_present
            made.mixed += len(certificate.model_versions) > 1
            made.versions.update(certificate.model_versions)
            if certificate.break_cause is not None:
                made.breaks[str(certificate.break_cause)] += 1
        return made

    def __add__(self, other: CertificateSummary) -> CertificateSummary:
        return CertificateSummary(
            self.rows + other.rows,
            self.tokens + other.tokens,
            self.trained_tokens + other.trained_tokens,
            self.with_ids + other.with_ids,
            self.with_logprobs + other.with_logprobs,
            self.mixed + other.mixed,
            self.versions + other.versions,
            self.breaks + other.breaks,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the counts in a form that JSON knows."""
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "trained_tokens": self.trained_tokens,
            "with_ids": self.with_ids,
            "with_logprobs": self.with_logprobs,
            "mixed": self.mixed,
            "versions": dict(self.versions),
            "breaks": dict(self.breaks),
        }

    def metrics(self) -> dict[str, float]:
        """Return shares and counts as an algorithm's step reports them."""
        rows = max(self.rows, 1)
        return {
            "rows": float(self.rows),
            "rows_with_ids": self.with_ids / rows,
            "rows_with_logprobs": self.with_logprobs / rows,
            "rows_of_several_versions": self.mixed / rows,
            "rows_after_a_break": self.breaks.total() / rows,
        }

    def __str__(self) -> str:
        parts = [
            f"{self.rows} rows of {self.tokens} tokens, {self.trained_tokens} to train on",
            f"token ids {self._share(self.with_ids)}, logprobs {self._share(self.with_logprobs)}",
        ]
        versions = [f"{version} in {count}" for version, count in sorted(self.versions.items())]
        if self.mixed:
            versions.append(f"several in {self.mixed}")
        parts.append(f"model versions: {', '.join(versions) or 'not told'}")
        breaks = [f"{count} ({cause})" for cause, count in self.breaks.most_common()]
        parts.append(f"breaks: {', '.join(breaks) or 'none'}")
        return "; ".join(parts)

    def _share(self, count: int) -> str:
        return "in all" if count == self.rows else f"in {count} of {self.rows}"
