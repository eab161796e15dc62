"""What is said of a claim: findings, a verdict each, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from reproduce.statistics import Interval


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "not decidable at this scale"


class Ruling(NamedTuple):
    """What a rule says of a piece of evidence."""

    verdict: Verdict
    why: str
    """One clause"""


def yes(why: str) -> Ruling:
    return Ruling(Verdict.REPRODUCED, why)


def no(why: str) -> Ruling:
    return Ruling(Verdict.NOT_REPRODUCED, why)


def undecided(why: str) -> Ruling:
    return Ruling(Verdict.UNDECIDED, why)


@dataclass(frozen=True)
class Finding:
    """One measured thing beside what the paper says of it."""

    what: str
    paper: str
    measured: str
    """The value with its interval, the number of seeds and what the test set resolves; up to the
    first semicolon it is what the table of claims shows"""
    value: float | None = None
    interval: Interval | None = None
    """What the rule went by: for a gap wider than the interval over seeds, see `rules.decisive`"""
    verdict: Verdict | None = None
    """None: information, which no verdict follows from"""
    why: str = ""
    """The rule's reason, one clause"""
    cells: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    """MLflow's ids"""

    @property
    def brief(self) -> str:
        return self.measured.partition(";")[0]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper with all that the records say of it."""

    id: str
    statement: str
    strength: str
    """As the reading of the paper puts it: strong or moderate"""
    paper: str
    """The numbers that the paper gives"""
    findings: tuple[Finding, ...]
    missing: tuple[str, ...] = ()
    """What to run for the parts, or networks, that nothing is known of"""

    @property
    def verdict(self) -> Verdict:
        return overall(finding.verdict for finding in self.findings)


def overall(verdicts: Iterable[Verdict | None]) -> Verdict:
    """The verdict on a claim: not reproduced if any finding says so; else not decidable if any
    finding is, or none has a verdict; else reproduced."""
    found = {verdict for verdict in verdicts if verdict is not None}
    if Verdict.NOT_REPRODUCED in found:
        return Verdict.NOT_REPRODUCED
    return Verdict.REPRODUCED if found == {Verdict.REPRODUCED} else Verdict.UNDECIDED
