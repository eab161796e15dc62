"""The rules on gaps, and the one from findings to a claim: every verdict, and what it takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reproduce.claims import Verdict, evidence, rules
from reproduce.claims.build import gap_text, row
from reproduce.claims.finding import Ruling, overall

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
    gpipe = seeded(R50, "gpipe", 95.0)
    apart = [run(R50, "t1", s, final=90.0 + 4 * (s - 1)) for s in SEEDS]
    assert rules.equal(gap_of(*gpipe, *seeded(R50, "t1", 90.0))).verdict is NO
    found = gap_of(*gpipe, *apart)
    assert found["low"] > found["resolution"], "the bootstrap of three would decide it"
    assert rules.equal(found).verdict is UNDECIDED


def test_no_threshold_below_the_resolution() -> None:
    """A gap of one step of a coarse metric is within it, however often it was seen."""
    coarse = {"resolution": 12.0}
    runs = *seeded(PHRASES, "gpipe", 40.0, **coarse), *seeded(PHRASES, "t1", 34.0, **coarse)
    assert rules.equal(gap_of(*runs)).verdict is YES
    fine = *seeded(PHRASES, "gpipe", 40.0), *seeded(PHRASES, "t1", 34.0)
    assert rules.equal(gap_of(*fine)).verdict is NO


def test_seeds_do_not_tell_the_error_of_bleus_test_part() -> None:
    """Every seed is tested on the same sentences, so that ten seeds that agree to the last digit
    still say nothing of a gap of 4 points."""
    ten = range(10)
    base = seeded(PHRASES, "gpipe", 40.0, ten)
    small = gap_of(*base, *seeded(PHRASES, "t1", 36.0, ten))
    assert small["spread"] == pytest.approx(0.0)
    assert rules.equal(small).verdict is UNDECIDED
    assert "the test part, which is the same for every seed" in gap_text(small)
    assert rules.better(gap_of(*base, *seeded(PHRASES, "t1", 44.0, ten))).verdict is UNDECIDED
    assert rules.equal(gap_of(*base, *seeded(PHRASES, "t1", 34.0, ten))).verdict is NO


def test_a_baseline_at_chance_is_not_better_for_never_diverging() -> None:
    """async at 10% and T1 at 96% in two runs of three: T1 is not the worse one."""
    t1 = [*seeded(R50, "t1", 96.0, [0, 1]), *seeded(R50, "t1", None, [2])]
    ruling = rules.better(gap_of(*seeded(R50, "async", 10.0), *t1, baseline="async"))
    assert ruling.verdict is UNDECIDED
    assert ruling.why == "t1 diverges in 1 of 3 runs, async has not learnt the task"
    learnt = gap_of(*seeded(R50, "async", 95.0), *t1, baseline="async")
    assert rules.better(learnt).verdict is NO


@pytest.mark.parametrize("final", [50.0, None, 99.0])
@pytest.mark.parametrize("rule", [rules.equal, rules.better])
def test_rows_of_other_settings_are_not_compared(
    rule: Callable[[Row], Ruling], final: float | None
) -> None:
    """A row that was given fewer steps and another learning rate proves nothing."""
    other = {"set_steps": 50, "set_lr": 0.02}
    gap = gap_of(*seeded(R50, "gpipe", 95.0), *seeded(R50, "t1", final, **other))
    ruling = rule(gap)
    assert ruling.verdict is UNDECIDED
    assert ruling.why == "the rows differ in steps = 600 and 50, lr = 0.01 and 0.02"


def test_a_methods_own_settings_may_differ() -> None:
    own = {
        "set_annealing_steps": 9, "set_decay": 0.5, "set_sync_steps": 7, "set_segment": 4,
        "set_workers": 4, "set_target": 80.0, "set_eval_every": 5, "set_engine": "reference",
    }  # fmt: skip
    gap = gap_of(*seeded(R50, "gpipe", 95.0), *seeded(R50, "t1", 50.0, **own))
    assert gap["differ"] == ""
    assert rules.equal(gap).verdict is NO


def test_unknown_resolution_and_no_seed_in_common() -> None:
    unknown = {"resolution": None}
    runs = *seeded(R50, "gpipe", 95.0, **unknown), *seeded(R50, "t1", 50.0, **unknown)
    assert rules.equal(gap_of(*runs)).verdict is UNDECIDED
    apart = *seeded(R50, "gpipe", 95.0, [0]), *seeded(R50, "t1", 50.0, [1])
    assert rules.equal(gap_of(*apart)).verdict is UNDECIDED
