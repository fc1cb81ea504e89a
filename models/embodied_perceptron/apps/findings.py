"""What checks find, and which of it to mend first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad a finding is."""

    OK = 0
    INFO = 1
    WARNING = 2  # it works, but worse than it could
    ERROR = 3  # the map will be wrong, or there will be none


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: its name, a word or two.
        severity: how bad.
        message: what was found, with numbers.
        remedy: what to do; empty when there is nothing to do.
    """

    check: str
    severity: Severity
    message: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """JSON form."""
        return {
            "check": self.check,
            "severity": self.severity.name.lower(),
            "message": self.message,
            "remedy": self.remedy,
        }


# from cause to consequence: what comes earlier makes what comes later go wrong as well
_CAUSES_FIRST = (
    *("reading", "images", "messages", "calibration", "sizes", "clock", "topics", "QoS", "data", "stamps"),
    *("clock offset", "transforms", "poses", "camera frame", "pose convention", "scale", "depth unit", "world axes"),
    *("pairing", "registration", "focal length", "depth", "depth frozen"),
)


def has_errors(findings: Sequence[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.severity == Severity.ERROR for finding in findings)


def first_to_mend(findings: Sequence[Finding]) -> Finding | None:
    """Of the worst findings with a remedy the one that is likeliest the cause of others; None where all is well."""
    rank = {check: i for i, check in enumerate(_CAUSES_FIRST)}
    bad = [f for f in findings if f.severity >= Severity.WARNING and f.remedy]
    return min(bad, key=lambda f: (-f.severity, rank.get(f.check, len(rank))), default=None)
