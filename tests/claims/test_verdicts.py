"""Every verdict of every claim, reached from records that call for it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from reproduce.claims import Claim, Verdict, claims

from ..made import WEIGHTS, Row, made, run, seeded

R50, R152, PHRASES = "digits-resnet50", "digits-resnet152", "phrases-transformer"
YES, NO, UNDECIDED = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED


def claim(number: int, *runs: Row, cells: Iterable[str] = ()) -> Claim:
    return claims(made(runs), tuple(cells))[number - 1]


def verdicts(found: Claim) -> dict[str, Verdict | None]:
    return {finding.what: finding.verdict for finding in found.findings}


# C1


def timed(method: str, reached: int | None, seeds: Iterable[int] = range(3)) -> list[Row]:
    """Runs that first reach 90% at this step, with an evaluation just before it."""
    curve = {reached - 1: 80.0, reached: 98.0} if reached else {600: 89.0}
    final = 98.0 if method == "t1+t2" else 95.0
    return [run(R50, method, seed, final=final, curve=curve) for seed in seeds]


@pytest.mark.parametrize(
    ("gpipe", "pipemare", "seeds", "verdict"),
    [
        (200, 300, 3, YES),
        (20, 500, 3, NO),
        (200, None, 3, NO),
        (None, 300, 3, UNDECIDED),
        (200, None, 1, UNDECIDED),
        (200, 300, 1, YES),
        (40, 400, 3, YES),
        (40, 400, 1, UNDECIDED),
    ],
)
def test_c1_time_to_target(
    gpipe: int | None, pipemare: int | None, seeds: int, verdict: Verdict
) -> None:
    """A synchronous step takes 14.25 steps of a full pipeline; one run decides a factor of 2."""
    runs = *timed("gpipe", gpipe, range(seeds)), *timed("t1+t2", pipemare, range(seeds))
    (found,) = (v for what, v in verdicts(claim(1, *runs)).items() if "time to 90%" in what)
    assert found is verdict


def test_c1() -> None:
    good = [*timed("gpipe", 200), *timed("t1+t2", 300)]
    assert claim(1, *good).verdict is YES
    assert claim(1, *seeded(R50, "gpipe", 95.0), *seeded(R50, "t1+t2", None)).verdict is NO
    assert claim(1, *seeded(R50, "gpipe", 95.0), *seeded(R50, "t1+t2", 95.0)).verdict is UNDECIDED
    worse_elsewhere = [*seeded(PHRASES, "gpipe", 40.0), *seeded(PHRASES, "t1+t2", 30.0)]
    assert claim(1, *good, *worse_elsewhere).verdict is NO


def test_c1_takes_t3_where_there_is_one() -> None:
    runs = [
        *seeded(R50, "gpipe", 95.0),
        *seeded(R50, "t1+t2", None),
        *seeded(R50, "t1+t2+t3", 98.0),
    ]
    found = verdicts(claim(1, *runs))
    assert found["digits-resnet50: gpipe − t1+t2+t3"] is YES
    assert "digits-resnet50: gpipe − t1+t2" not in found


def test_c1_waits_for_the_tables_row() -> None:
    """T1+T2 alone would reproduce the claim; the table has T3 stand for PipeMare."""
    runs = [*timed("gpipe", 200), *timed("t1+t2", 300)]
    assert claim(1, *runs).verdict is YES
    cells = [f"{R50}/{method}" for method in ("gpipe", "t1+t2", "t1+t2+t3")]
    found = claim(1, *runs, cells=cells)
    assert found.verdict is UNDECIDED
    (gap,) = (f for f in found.findings if f.verdict is not None)
    assert gap.what == "digits-resnet50: gpipe − t1+t2+t3"
    assert gap.why == "not finished: digits-resnet50/t1+t2+t3"
    assert "digits-resnet50/t1+t2+t3" in found.missing


def test_c1_waits_for_a_network_without_a_run() -> None:
    runs = [*timed("gpipe", 200), *timed("t1+t2", 300)]
    cells = [f"{network}/{m}" for network in (R50, PHRASES) for m in ("gpipe", "t1+t2")]
    found = claim(1, *runs, cells=cells)
    assert found.verdict is UNDECIDED
    assert {f"{PHRASES}/gpipe", f"{PHRASES}/t1+t2"} <= set(found.missing)
    assert not any("a target" in text for text in found.missing), "whether it has one is not known"


def test_c2_waits_for_the_tables_rows() -> None:
    runs = [*seeded(R50, "gpipe", 94.0), *seeded(R50, "async", None), *seeded(R50, "t1", 97.0)]
    runs += [*seeded(R50, "hogwild", 90.0), *seeded(R50, "hogwild+t1", 96.0)]
    lockfree = [f"{R50}/hogwild-lockfree", f"{R50}/hogwild-lockfree+t1"]
    assert claim(2, *runs, cells=[row["cell"] for row in runs]).verdict is YES
    found = claim(2, *runs, cells=[*(row["cell"] for row in runs), *lockfree])
    assert found.verdict is UNDECIDED and set(lockfree) == set(found.missing)


def test_c1_compares_no_clock_of_other_workers() -> None:
    four = [row | {"set_workers": 4} for row in timed("t1+t2", 300)]
    found = claim(1, *timed("gpipe", 200), *four)
    told = [f.measured for f in found.findings if "time to" in f.what or "utilization" in f.what]
    assert len(told) == 2
    for text in told:
        assert "not compared on the workers used: workers = 2 and 4" in text
        assert "by the clock" not in text and "times gpipe's" not in text


def test_c1_of_rows_that_differ() -> None:
    """Fifty steps against six hundred decide nothing, of quality or of time."""
    short = [row | {"set_steps": 50} for row in timed("t1+t2", 20)]
    found = claim(1, *timed("gpipe", 200), *short)
    assert {f.verdict for f in found.findings} == {UNDECIDED, None}
    for finding in found.findings:
        assert "steps = 600 and 50" in finding.why + finding.measured
        assert finding.verdict is None or "gap" in finding.brief or "not compared" in finding.brief


def test_c1_tells_the_utilization_without_a_verdict() -> None:
    found = claim(1, *seeded(R50, "gpipe", 95.0), *seeded(R50, "t1+t2", 95.0))
    (used,) = (f for f in found.findings if "utilization" in f.what)
    assert used.verdict is None
    assert used.value == pytest.approx(14.25)
    assert used.brief == "14.25 times by the model with one device a stage"


# C2


def c2(none: float | None, t1: float | None, gpipe: float, hogwild: float, with_t1: float) -> Claim:
    return claim(
        2,
        *seeded(R50, "gpipe", gpipe),
        *seeded(R50, "async", none),
        *seeded(R50, "t1", t1),
        *seeded(R50, "hogwild", hogwild),
        *seeded(R50, "hogwild+t1", with_t1),
    )


def test_c2() -> None:
    assert c2(None, 97.0, 94.0, 90.0, 96.0).verdict is YES
    assert c2(None, 95.0, 95.0, 90.0, 96.0).verdict is UNDECIDED, "0.0 of gap at 360 samples"
    assert c2(None, 90.0, 95.0, 90.0, 96.0).verdict is NO
    assert c2(95.0, None, 95.0, 90.0, 96.0).verdict is NO
    assert c2(None, 97.0, 94.0, 96.0, 90.0).verdict is NO


def test_c2_leaves_the_deep_network_to_c3() -> None:
    runs = [*seeded(R152, "gpipe", 95.0), *seeded(R152, "async", None), *seeded(R152, "t1", None)]
    found = claim(2, *runs)
    assert found.verdict is UNDECIDED
    assert not any(R152 in what for what in verdicts(found))


def test_c2_counts_lock_free_rows_too() -> None:
    lockfree = [
        *seeded(R50, "hogwild-lockfree", 95.0, delays={1: 2}),
        *seeded(R50, "hogwild-lockfree+t1", 80.0, delays={0: 1, 3: 1}),
    ]
    found = claim(2, *lockfree)
    (finding,) = (f for f in found.findings if "lockfree" in f.what)
    assert finding.verdict is NO
    assert "delays measured: mean 1.50, largest 3 updates" in finding.measured


# C3


@pytest.mark.parametrize(
    ("t1", "both", "verdict"),
    [
        (None, 95.0, YES),
        (None, None, NO),
        (95.0, 95.0, NO),
        (38.0, 95.0, UNDECIDED),
        (None, 12.0, UNDECIDED),
    ],
)
def test_c3_rows(t1: float | None, both: float | None, verdict: Verdict) -> None:
    runs = *seeded(R152, "t1", t1), *seeded(R152, "t1+t2", both)
    assert claim(3, *seeded(R152, "gpipe", 95.0), *runs).verdict is verdict
    for gpipe in (None, 12.0):
        assert claim(3, *seeded(R152, "gpipe", gpipe), *runs).verdict is UNDECIDED


def test_c3_where_everything_diverges() -> None:
    """A learning rate that synchronous training cannot stand says nothing of T2; nor is it known
    to stand it where nobody tried."""
    both = *seeded(R152, "t1", None), *seeded(R152, "t1+t2", None)
    found = claim(3, *seeded(R152, "gpipe", None), *both)
    assert found.findings[0].why == "gpipe itself diverges in 3 of 3 runs"
    assert "gpipe diverges in 3 of 3 runs" in found.findings[0].measured
    assert claim(3, *both).verdict is UNDECIDED


def test_c3_of_rows_that_differ() -> None:
    runs = *seeded(R152, "t1", None, set_lr=1.0), *seeded(R152, "t1+t2", 95.0)
    found = claim(3, *runs)
    assert found.verdict is UNDECIDED
    assert found.findings[0].why == "the rows differ in lr = 1 and 0.01"


def test_c3_some_seeds() -> None:
    some = [*seeded(R152, "t1", None, [0, 1]), *seeded(R152, "t1", 95.0, [2])]
    assert claim(3, *some, *seeded(R152, "t1+t2", 95.0)).verdict is UNDECIDED


def test_c3_a_short_pipeline_contradicts_nothing() -> None:
    short = {"set_stages": 8}
    runs = *seeded(R152, "t1", 95.0, **short), *seeded(R152, "t1+t2", 95.0, **short)
    assert claim(3, *runs).verdict is UNDECIDED


def sweep(lr: float, **ends: int | None) -> list[Row]:
    """T1 and T1+T2 at P = 10 and 150; `t1_150=9`: T1 diverges at 150 in step 9."""
    return [
        run(
            R152, method, variant=f"depth:stages={p},lr={lr}", set_stages=p,
            diverged_at=ends.get(f"{method.replace('+', '')}_{p}"),
        )
        for method in ("t1", "t1+t2")
        for p in (10, 150)
    ]  # fmt: skip


ROWS = [*seeded(R152, "t1", None), *seeded(R152, "t1+t2", 95.0)]


@pytest.mark.parametrize(
    ("swept", "verdict"),
    [
        (sweep(0.01, t1_150=9), YES),
        ([*sweep(0.001), *sweep(0.01, t1_150=9)], YES),
        (sweep(0.001), NO),
        (sweep(0.1, t1_150=9, t1t2_150=9), NO),
        (sweep(0.1, t1_10=9, t1_150=9), NO),
        ([r | {"set_stages": min(r["set_stages"], 50)} for r in sweep(0.001)], UNDECIDED),
        (sweep(0.01, t1_150=9)[1::2], UNDECIDED),
        ([*sweep(0.001), *sweep(0.01)[::2]], UNDECIDED),
        ([*sweep(0.001), *sweep(0.01)[:2]], UNDECIDED),
        ([r | {"set_lr": 0.1 * (r["method"] == "t1")} for r in sweep(0.01, t1_150=9)], UNDECIDED),
    ],
)
def test_c3_depth(swept: list[Row], verdict: Verdict) -> None:
    assert claim(3, *ROWS).verdict is YES
    assert claim(3, *ROWS, *swept).verdict is verdict


def test_c3_waits_for_the_rest_of_the_sweep() -> None:
    """One regime without the effect refutes nothing while the table has another to run."""
    swept = sweep(0.001)
    cells = [row["cell"] for row in (*ROWS, *swept, *sweep(0.01))]
    assert claim(3, *ROWS, *swept, cells=cells[: len(ROWS) + len(swept)]).verdict is NO
    found = claim(3, *ROWS, *swept, cells=cells)
    assert found.verdict is UNDECIDED
    assert "4 cells of the sweep depth" in found.missing


def test_c3_says_what_short_runs_cannot_tell() -> None:
    """Runs of 60 steps at chance do not train, they do not diverge; the verdict says it is that."""
    short = [row | {"steps": 60, "final": 11.0} for row in sweep(0.001)]
    found = claim(3, *ROWS, *short)
    regime = next(f for f in found.findings if "lr=0.001" in f.what)
    assert "4 runs do not diverge in 60 steps, none of these had learnt the task" in regime.measured
    overall = next(f for f in found.findings if f.what.startswith("depth sweep"))
    assert overall.verdict is NO and "by divergence alone" in overall.why
    assert "trains" not in regime.measured + regime.why + overall.measured + overall.why
    learnt = claim(3, *ROWS, *sweep(0.001))
    regime = next(f for f in learnt.findings if "lr=0.001" in f.what)
    assert "in 600 steps, 4 of these had learnt" in regime.measured


def test_c3_says_in_which_regimes() -> None:
    found = claim(
        3, *ROWS, *sweep(0.001), *sweep(0.01, t1_150=9), *sweep(0.1, t1_150=9, t1t2_150=9)
    )
    why = {f.what: f.why for f in found.findings if "lr=" in f.what}
    assert why == {
        "digits-resnet152, lr=0.001": "T1 alone does not diverge at the largest P: T2 is not "
        "necessary for that",
        "digits-resnet152, lr=0.01": "T2 is necessary at the largest P and not at the smallest",
        "digits-resnet152, lr=0.1": "T2 does not keep every run from diverging at the largest P",
    }
    assert [f.value for f in found.findings if "lr=0.01" in f.what] == [150.0]


def test_c3_approximation_is_information() -> None:
    stages = [{"stage": i, "tau_fwd": 1.0, "tau_bkwd": 0.0, "t2_ratio": 0.5} for i in (1, 2)]
    told = run(R152, "t1+t2", variant="approximation:stages=20", set_stages=20, stages=stages)
    found = claim(3, *ROWS, told)
    assert found.verdict is YES
    (finding,) = (f for f in found.findings if f.value == 0.5)
    assert finding.verdict is None and "0.50 at P = 20" in finding.measured


# C4


def c4(stash: float, pipedream: float | None, pipemare: float | None) -> Claim:
    held = {"memory_stash": int(stash * WEIGHTS)}
    return claim(
        4, *seeded(R50, "pipedream", pipedream, **held), *seeded(R50, "t1+t2", pipemare)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stash", "pipedream", "pipemare", "verdict"),
    [
        (7.0, 90.0, 95.0, YES),
        (7.0, None, 95.0, UNDECIDED),
        (7.0, 95.0, 95.0, UNDECIDED),
        (7.0, 95.0, 90.0, NO),
        (7.0, 95.0, None, NO),
        (2.0, 90.0, 95.0, UNDECIDED),
        (0.5, 90.0, 95.0, NO),
    ],
)
def test_c4(
    stash: float, pipedream: float | None, pipemare: float | None, verdict: Verdict
) -> None:
    """T1+T2 under SGD with momentum holds 3 times the weights, PipeDream 2 times and its stash."""
    assert c4(stash, pipedream, pipemare).verdict is verdict


def test_c4_a_stash_cut_short_is_no_memory() -> None:
    """PipeDream that diverges at step 8 has stashed next to nothing, which is no saving of its."""
    t1 = seeded(R50, "t1+t2", 95.0)
    found = claim(4, *seeded(R50, "pipedream", None, memory_stash=WEIGHTS // 2), *t1)
    assert found.verdict is UNDECIDED
    told = {f.what: f for f in found.findings}
    ratio = told["digits-resnet50: memory of pipedream over t1+t2's"]
    assert (ratio.verdict, ratio.measured) == (None, "not counted")
    assert told["digits-resnet50: pipedream − t1+t2"].verdict is YES
    elsewhere = *seeded(PHRASES, "pipedream", 30.0), *seeded(PHRASES, "t1+t2", 40.0)
    found = claim(4, *seeded(R50, "pipedream", None), *t1, *elsewhere)
    assert [f.verdict for f in found.findings if "largest" in f.what] != []


def test_c4_waits_for_the_tables_row() -> None:
    runs = *seeded(R50, "pipedream", 90.0, memory_stash=7 * WEIGHTS), *seeded(R50, "t1+t2", 95.0)
    cells = [f"{R50}/{method}" for method in ("pipedream", "t1+t2", "t1+t2+t3")]
    assert claim(4, *runs, cells=cells[:2]).verdict is YES
    assert claim(4, *runs, cells=cells).verdict is UNDECIDED


def test_c4_of_rows_that_differ() -> None:
    runs = *seeded(R50, "pipedream", 90.0, set_width=64), *seeded(R50, "t1+t2", 95.0, set_width=8)
    ratio = claim(4, *runs).findings[0]
    assert (ratio.verdict, ratio.why) == (UNDECIDED, "the rows differ in width = 64 and 8")
    assert ratio.brief == "not compared"


def test_c4_names_the_optimizer_and_the_parts() -> None:
    found = c4(7.0, 90.0, 95.0)
    told = {f.what: f.measured for f in found.findings}
    text = told["digits-resnet50, sgd with momentum 0.9: memory of pipedream over t1+t2's"]
    assert text.startswith("3.00 times; t1+t2 4.50 MB = weights 1.50 + optimizer 1.50 + δ 1.50")
    assert "stash 10.50" in text


# C5


def grown(exponent: float, segments: bool, wobble: float = 1.0) -> list[Row]:
    """Activations of networks with a weighted layer a stage; every other one off by a factor."""
    return [
        run(
            PHRASES, "t1", variant=f"activations:stages={p},segments={segments}", set_stages=p,
            units=p, set_segment=round(p**0.5) if segments else 0,
            memory_activations_peak=int(1e4 * p**exponent * (wobble if j % 2 else 1.0)),
        )
        for j, p in enumerate((16, 33, 48, 63, 93))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "recomputed", "verdict"),
    [
        (grown(2.0, False), grown(1.5, True), YES),
        (grown(1.9, False), grown(1.6, True), YES),
        (grown(1.5, False), grown(1.5, True), NO),
        (grown(2.0, False), grown(2.0, True), NO),
        (grown(2.0, False, wobble=2.0), grown(1.5, True), UNDECIDED),
        (grown(2.0, False), [], UNDECIDED),
        (grown(2.0, False)[:2], grown(1.5, True), UNDECIDED),
    ],
)
def test_c5(kept: list[Row], recomputed: list[Row], verdict: Verdict) -> None:
    assert claim(5, *kept, *recomputed).verdict is verdict


def test_c5_is_about_methods_without_flushes() -> None:
    """GPipe in the same sweep holds a mini-batch whatever P is: information, averaged with none."""
    gpipe = [
        row | {"method": "gpipe", "cell": f"{row['cell']}/gpipe", "memory_activations_peak": 10**6}
        for row in grown(2.0, False)
    ]
    found = claim(5, *grown(2.0, False), *grown(1.5, True), *gpipe)
    assert found.verdict is YES
    (flat,) = (f for f in found.findings if "/gpipe" in f.what)
    assert flat.verdict is None and flat.value == pytest.approx(0.0, abs=1e-9)
    assert claim(5, *gpipe).verdict is UNDECIDED


def test_c5_cuts_are_information() -> None:
    cuts = [
        run(R50, "t1", variant=f"cuts:stages={p}", set_stages=p, memory_activations_peak=1000 * p)
        for p in (2, 8, 32)
    ]
    found = claim(5, *grown(2.0, False), *grown(1.5, True), *cuts)
    assert found.verdict is YES
    exponent, rate = (f for f in found.findings if "digits" in f.what)
    assert exponent.value == pytest.approx(1.0) and exponent.verdict is None
    assert rate.verdict is None and "one device a stage" in rate.why
