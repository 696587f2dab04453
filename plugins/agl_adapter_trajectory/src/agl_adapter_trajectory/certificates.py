"""Counts over the certificates of many rows, and the report that carries them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agl_adapter_trajectory.rows import TrajectoryRow
from agl_core.adapter import AdapterReport


@dataclass(slots=True)
class CertificateSummary:
    """Counts over :class:`~agl_adapter_trajectory.Certificate`. Summaries can be added.

    ::

        >>> print(CertificateSummary.of(rows))
        14 rows of 5210 tokens, 1890 to train on; token ids in all, logprobs in all;
        model versions: step-1 in 7, step-2 in 8, several in 1; breaks: 2 (history truncated)

    Attributes:
        rows: How many rows.
        tokens: How many tokens the rows have in total.
        trained_tokens: How many of them a model sampled (mask 1).
        with_ids: Rows in which no call lacks token ids.
        with_logprobs: Rows with the log-probability of every sampled token.
        mixed: Rows sampled by several model versions, and so by several policies.
        versions: Rows by model version; a row of several versions counts in each.
        altered: Rows sampled with parameters that their log-probabilities do not know.
        continued: Rows with calls whose prompts continue the tokens of the calls before them.
        fallbacks: Rows by the reasons for which calls of theirs do not.
        breaks: Rows by the reason for which they do not continue an earlier row.
    """

    rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    with_ids: int = 0
    with_logprobs: int = 0
    mixed: int = 0
    altered: int = 0
    continued: int = 0
    versions: Counter[str] = field(default_factory=Counter[str])
    breaks: Counter[str] = field(default_factory=Counter[str])
    fallbacks: Counter[str] = field(default_factory=Counter[str])

    @classmethod
    def of(cls, rows: Iterable[TrajectoryRow]) -> CertificateSummary:
        """Summarize the certificates of ``rows``."""
        made = cls()
        for row in rows:
            certificate = row.certificate
            made.rows += 1
            made.tokens += len(row.token_ids)
            made.trained_tokens += sum(row.mask)
            made.with_ids += certificate.ids_present
            made.with_logprobs += certificate.logprobs_present
            made.mixed += len(certificate.model_versions) > 1
            made.altered += bool(certificate.altered_sampling)
            made.continued += certificate.continued > 0
            made.fallbacks.update(certificate.fallbacks)
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
            self.altered + other.altered,
            self.continued + other.continued,
            self.versions + other.versions,
            self.breaks + other.breaks,
            self.fallbacks + other.fallbacks,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as JSON-serializable values."""
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "trained_tokens": self.trained_tokens,
            "with_ids": self.with_ids,
            "with_logprobs": self.with_logprobs,
            "mixed": self.mixed,
            "altered": self.altered,
            "continued": self.continued,
            "versions": dict(self.versions),
            "breaks": dict(self.breaks),
            "fallbacks": dict(self.fallbacks),
        }

    def metrics(self) -> dict[str, float]:
        """Return the shares and counts that an algorithm reports as metrics of a step."""
        rows = max(self.rows, 1)
        return {
            "rows": float(self.rows),
            "rows_with_ids": self.with_ids / rows,
            "rows_with_logprobs": self.with_logprobs / rows,
            "rows_of_several_versions": self.mixed / rows,
            "rows_of_altered_sampling": self.altered / rows,
            "rows_after_a_break": self.breaks.total() / rows,
        }

    def __str__(self) -> str:
        parts = [
            f"{self.rows} rows of {self.tokens} tokens, {self.trained_tokens} to train on",
            f"token ids {self._share(self.with_ids)}, logprobs {self._share(self.with_logprobs)}",
        ]
        if self.altered:
            parts.append(f"penalties, formats and the like in {self.altered}")
        if self.continued:
            parts.append(f"continued in token space in {self.continued}")
        if self.fallbacks:
            reasons = [f"{count} ({reason})" for reason, count in self.fallbacks.most_common()]
            parts.append(f"not continued: {', '.join(reasons)}")
        versions = [f"{version} in {count}" for version, count in sorted(self.versions.items())]
        if self.mixed:
            versions.append(f"several in {self.mixed}")
        parts.append(f"model versions: {', '.join(versions) or 'unknown'}")
        breaks = [f"{count} ({cause})" for cause, count in self.breaks.most_common()]
        parts.append(f"breaks: {', '.join(breaks) or 'none'}")
        return "; ".join(parts)

    def _share(self, count: int) -> str:
        return "in all" if count == self.rows else f"in {count} of {self.rows}"


@dataclass(slots=True)
class TrajectoryReport(AdapterReport):
    """The report of an adaptation, with a summary of the rows' certificates.

    Attributes:
        certificates: Counts over the certificates of all rows.
    """

    certificates: CertificateSummary = field(default_factory=CertificateSummary)

    def certify(self, rows: Iterable[TrajectoryRow]) -> None:
        """Count the certificates of ``rows``."""
        self.certificates += CertificateSummary.of(rows)

    def __add__(self, other: AdapterReport) -> TrajectoryReport:
        certificates = self.certificates
        if isinstance(other, TrajectoryReport):
            certificates += other.certificates
        counts = AdapterReport.__add__(self, other)
        return TrajectoryReport(
            counts.spans, counts.produced, counts.left_out, counts.repaired, certificates
        )

    # Python asks the subclass first, so that `sum(reports, AdapterReport())` keeps certificates.
    __radd__ = __add__

    def as_dict(self) -> dict[str, Any]:
        return AdapterReport.as_dict(self) | {"certificates": self.certificates.as_dict()}

    def __str__(self) -> str:
        return f"{AdapterReport.__str__(self)}\ncertified: {self.certificates}"
