"""The rules on gaps, and the one from findings to a claim: every verdict, and what it takes."""

from __future__ import annotations

import pytest

from reproduce.claims import Verdict, evidence, rules
from reproduce.claims.build import row
from reproduce.claims.finding import overall

from ..made import Row, made, run, seeded

R50, PHRASES = "digits-resnet50", "phrases-transformer"
YES, NO, UNDECIDED = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED
SEEDS = range(3)


def gap_of(*runs: Row, baseline: str = "gpipe", method: str = "t1") -> Row:
    found = row(evidence.gaps(made(runs), baseline), method=method)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([YES, NO, UNDECIDED], NO),
        ([YES, UNDECIDED, None], UNDECIDED),
        ([YES, None], YES),
        ([None], UNDECIDED),
        ([], UNDECIDED),
    ],
)
def test_verdict_of_a_claim(found: list[Verdict | None], verdict: Verdict) -> None:
    assert overall(found) is verdict


# Gaps: 1080 test samples at 95% resolve 1.8 points, three seeds that agree no more.


@pytest.mark.parametrize(
    ("base", "method", "verdict"),
    [
        (95.0, 98.0, YES),
        (95.0, 95.0, UNDECIDED),
        (95.0, 94.0, UNDECIDED),
        (95.0, 91.0, NO),
        (95.0, None, NO),
        (None, 95.0, UNDECIDED),
        (11.0, 11.0, UNDECIDED),
        (11.0, None, UNDECIDED),
    ],
)
def test_as_good_as_synchronous(base: float | None, method: float | None, verdict: Verdict) -> None:
    ruling = rules.equal(gap_of(*seeded(R50, "gpipe", base), *seeded(R50, "t1", method)))
    assert ruling.verdict is verdict, ruling.why
    assert ruling.why


@pytest.mark.parametrize(
    ("base", "method", "verdict"),
    [
        (90.0, 95.0, YES),
        (None, 95.0, YES),
        (None, None, UNDECIDED),
        (None, 12.0, UNDECIDED),
        (95.0, 95.0, UNDECIDED),
        (95.0, 90.0, NO),
        (95.0, None, NO),
        (12.0, None, UNDECIDED),
        (12.0, 40.0, UNDECIDED),
        (90.0, 12.0, NO),
        (12.0, 90.0, YES),
    ],
)
def test_better_than_another_row(
    base: float | None, method: float | None, verdict: Verdict
) -> None:
    runs = *seeded(R50, "async", base), *seeded(R50, "t1", method)
    assert rules.better(gap_of(*runs, baseline="async")).verdict is verdict


def test_one_of_three_diverging() -> None:
    """A method that lost a seed is not as good; a baseline that lost one is no proof yet."""
    one = [*seeded(R50, "t1", 95.0, [0, 1]), *seeded(R50, "t1", None, [2])]
    assert rules.equal(gap_of(*seeded(R50, "gpipe", 95.0), *one)).verdict is NO
    lost = [*seeded(R50, "async", 95.0, [0, 1]), *seeded(R50, "async", None, [2])]
    t1 = seeded(R50, "t1", 95.0)
    assert rules.better(gap_of(*lost, *t1, baseline="async")).verdict is UNDECIDED
    most = [*seeded(R50, "async", 95.0, [0]), *seeded(R50, "async", None, [1, 2])]
    assert rules.better(gap_of(*most, *t1, baseline="async")).verdict is YES


@pytest.mark.parametrize("n", [1, 2])
def test_few_seeds_decide_large_gaps_alone(n: int) -> None:
    def verdict(final: float | None) -> Verdict:
        seeds = range(n)
        runs = *seeded(R50, "gpipe", 95.0, seeds), *seeded(R50, "t1", final, seeds)
        return rules.equal(gap_of(*runs)).verdict

    assert verdict(91.0) is UNDECIDED, "three seeds would decide it"
    assert verdict(89.0) is NO
    assert verdict(None) is NO


def test_seeds_that_disagree_decide_less() -> None:
    gpipe = seeded(PHRASES, "gpipe", 40.0)
    apart = [run(PHRASES, "t1", s, final=38.0 + s - 1) for s in SEEDS]
    assert rules.equal(gap_of(*gpipe, *seeded(PHRASES, "t1", 38.0))).verdict is NO
    found = gap_of(*gpipe, *apart)
    assert found["low"] > rules.PAPER_GAP, "the bootstrap of three would decide it"
    assert rules.equal(found).verdict is UNDECIDED


def test_no_threshold_below_the_resolution() -> None:
    """A gap of one step of a coarse metric is within it, however often it was seen."""
    coarse = {"resolution": 2.0}
    runs = *seeded(PHRASES, "gpipe", 40.0, **coarse), *seeded(PHRASES, "t1", 38.5, **coarse)
    assert rules.equal(gap_of(*runs)).verdict is YES
    fine = *seeded(PHRASES, "gpipe", 40.0), *seeded(PHRASES, "t1", 38.5)
    assert rules.equal(gap_of(*fine)).verdict is NO


def test_unknown_resolution_and_no_seed_in_common() -> None:
    unknown = {"resolution": None}
    runs = *seeded(R50, "gpipe", 95.0, **unknown), *seeded(R50, "t1", 50.0, **unknown)
    assert rules.equal(gap_of(*runs)).verdict is UNDECIDED
    apart = *seeded(R50, "gpipe", 95.0, [0]), *seeded(R50, "t1", 50.0, [1])
    assert rules.equal(gap_of(*apart)).verdict is UNDECIDED
