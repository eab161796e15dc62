"""Every threshold and every rule by which evidence becomes a verdict. Code applies them; none of
the verdicts is typed by hand.

- A claim: `finding.overall`. Any finding not reproduced: not reproduced; else any that is not
  decidable, or none: not decidable; else reproduced.
- PipeMare is the row t1+t2+t3 where a network has it, else t1+t2 (`evidence.pipemare`).
- A gap is decided by an interval around its mean, the widest of: Student's over the paired seeds
  (the bootstrap of three values never leaves their range, and covers the mean in only about three
  cases of four), the bootstrap's, and the sampling error of the test samples. One that crosses the
  threshold decides nothing.
- No threshold is finer than the smallest step of the metric on the test set: 0.1% is never found,
  nor missed, on 360 samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reproduce.claims.finding import Ruling, Verdict
from reproduce.statistics import Interval

MIN_SEEDS = 3
"""Below, the spread over seeds is not known and the next two stand in for it (assumed)"""
SINGLE_RUN = 5.0
"""Points that two single runs may differ by for their seeds alone (assumed)"""
SINGLE_RUN_FACTOR = 2.0
"""The same for times to a target, as a factor (assumed)"""
LEARNT = {"accuracy": 50.0, "bleu": 20.0}
"""Percent from which on a task counts as learnt (assumed): below, methods that fail alike would
count as equally good"""
PAPER_GAP = 0.1
"""Points: the paper's largest gap to synchronous training"""
PAPER_T1_GAP = {"accuracy": 0.0, "bleu": 0.4}
"""Points: the paper's 95.0 for 95.0% and 34.1 for 34.5 BLEU with T1 alone"""
PAPER_MEMORY = 2.0
"""The paper: up to so many times less weight and optimizer memory than PipeDream"""
DEEP = "resnet152"
"""The model on which the paper has T1 alone diverge: C3 looks at it, C2 at all others"""
DEEP_STAGES = 150
"""The paper's P there: that T2 is not needed at a smaller one contradicts nothing"""
TOLERANCE = 0.15
"""Of an exponent (assumed): lower-order terms bend a fit over a finite range of P"""
ACTIVATIONS, RECOMPUTED = 2.0, 1.5
"""Exponents of the activations in P, kept and with recompute in segments of sqrt(P) stages"""

Row = Mapping[str, Any]
"""One row of a frame of evidence"""


def decisive(gap: Row) -> Interval:
    """The interval of a gap that the rules go by (see above); unbounded where nothing is known."""
    half = [gap["mean"] - gap["low"], gap["high"] - gap["mean"], gap["sampling"]]
    half.append(SINGLE_RUN if gap["n"] < MIN_SEEDS else gap["spread"])
    reach = math.inf if any(math.isnan(h) for h in half) else max(half)
    return Interval(gap["mean"], gap["mean"] - reach, gap["mean"] + reach, int(gap["n"]))


def learnt(metric: str, final: float) -> bool:
    """Whether a final metric is one of a network that learnt its task; not where there is none."""
    return final >= LEARNT.get(metric, -math.inf)


def equal(gap: Row, paper: float = PAPER_GAP) -> Ruling:
    """Is the method as good as synchronous training, to within the paper's gap or one step of the
    metric, whichever is larger?"""
    if gap["baseline_diverged"]:
        return _undecided(f"{gap['baseline']} itself diverges")
    if not learnt(gap["metric"], gap["baseline_final"]):
        return _undecided(f"{gap['baseline']} has not learnt the task")
    if gap["diverged"]:
        return _no(f"diverges in {_of(gap['diverged'], gap['runs_n'])}, {gap['baseline']} in none")
    known = _known(gap)
    if known:
        return known
    found, margin = decisive(gap), max(paper, gap["resolution"])
    if found.high <= margin:
        return _yes(f"the gap is within {margin:.2f}")
    if found.low > margin:
        return _no(f"the gap is beyond {margin:.2f}")
    return _undecided(f"{_ends(found)} has {margin:.2f} inside{_few(gap['n'])}")


def better(gap: Row) -> Ruling:
    """Is the method decidably better than the baseline, or does only the baseline diverge?"""
    base, other = gap["baseline"], gap["method"]
    if gap["diverged"] and gap["baseline_diverged"]:
        return _undecided(
            f"both diverge: {base} in {_of(gap['baseline_diverged'], gap['baseline_n'])}, "
            f"{other} in {_of(gap['diverged'], gap['runs_n'])}"
        )
    if gap["baseline_diverged"]:
        if not learnt(gap["metric"], gap["final"]):
            return _undecided(f"{other} has not learnt the task either")
        of = _of(gap["baseline_diverged"], gap["baseline_n"])
        if 2 * gap["baseline_diverged"] > gap["baseline_n"]:
            return _yes(f"{base} diverges in {of}, {other} in none")
        return _undecided(f"{base} diverges in {of} only")
    if not any(learnt(gap["metric"], gap[key]) for key in ("final", "baseline_final")):
        return _undecided("neither has learnt the task")
    if gap["diverged"]:
        return _no(f"{other} diverges in {_of(gap['diverged'], gap['runs_n'])}, {base} in none")
    known = _known(gap)
    if known:
        return known
    found, step = decisive(gap), gap["resolution"]
    if found.high < -step:
        return _yes(f"{other} is better by more than {step:.2f}")
    if found.low > step:
        return _no(f"{other} is worse by more than {step:.2f}")
    return _undecided(f"{_ends(found)} does not tell them apart{_few(gap['n'])}")


def faster(row: Row, base: Row) -> Ruling:
    """Is the target reached sooner than by synchronous training, with one device a stage?"""
    if base["reached"] < base["n"]:
        return _undecided(f"gpipe reaches it in {_of(base['reached'], base['n'])}")
    if not row["reached"] and row["n"] >= MIN_SEEDS:
        return _no("never reached in as many steps as gpipe was given")
    if row["reached"] < row["n"]:
        return _undecided(f"reached in {_of(row['reached'], row['n'])}{_few(row['n'])}")
    found = speedup(row, base)
    if math.isnan(found.low):
        return _undecided("no seed in common with gpipe")
    if found.low > 1.0:
        return _yes("sooner, wherever between two evaluations each got there")
    if found.high <= 1.0:
        return _no("not sooner than gpipe")
    return _undecided(f"{_ends(found)} has 1 inside{_few(found.n)}")


def speedup(row: Row, base: Row) -> Interval:
    """The bounds of the speedup over seeds, wider where those are few."""
    n = int(min(row["n"], base["n"]))
    factor = SINGLE_RUN_FACTOR if n < MIN_SEEDS else 1.0
    ends = row["speedup_low"] / factor, row["speedup_high"] * factor
    return Interval(row["speedup_stages"], *ends, n)


def needed(t1: Row, corrected: Row, stages: int) -> Ruling:
    """Does T1 alone diverge where T1+T2 trains? Rows of `evidence.quality`, and their P."""
    if not t1["diverged"]:
        if not learnt(t1["metric"], t1["mean"]):
            return _undecided("T1 alone does not diverge, and has not learnt the task either")
        if stages < DEEP_STAGES:
            return _undecided(f"T1 alone trains at P = {stages}, the paper's is {DEEP_STAGES}")
        return _no("T1 alone does not diverge")
    if corrected["diverged"] == corrected["n"]:
        return _no("T1+T2 diverges as well")
    if t1["diverged"] < t1["n"] or corrected["diverged"]:
        return _undecided(
            f"T1 diverges in {_of(t1['diverged'], t1['n'])}, T1+T2 in "
            f"{_of(corrected['diverged'], corrected['n'])}"
        )
    if not learnt(corrected["metric"], corrected["mean"]):
        return _undecided("T1+T2 does not diverge, and has not learnt the task either")
    return _yes(f"T1 diverges in {_of(t1['diverged'], t1['n'])}, T1+T2 trains")


def needed_at_depth(regime: Row) -> bool:
    """T1 trains at the smallest P and diverges at the largest, where T1+T2 does not."""
    ends = regime["t1_shallow"], regime["t1_deep"], regime["t2_deep"]
    return regime["shallowest"] < regime["deepest"] and ends == (0.0, 1.0, 0.0)


def needed_where(regime: Row) -> str:
    """What a regime says of T2, in a clause."""
    if needed_at_depth(regime):
        return "T2 is necessary at the largest P and not at the smallest"
    if regime["shallowest"] == regime["deepest"]:
        return "one depth alone says nothing of depth"
    if regime["t2_deep"]:
        return "T2 does not keep every run from diverging at the largest P"
    if not regime["t1_deep"]:
        return "T1 alone trains at the largest P: T2 is not necessary"
    if regime["t1_shallow"]:
        return "T2 is necessary, but at the smallest P already: it is not depth that decides"
    return "some runs of T1 alone diverge at the largest P, not all"


def needed_somewhere(regimes: Sequence[Row]) -> Ruling:
    """Is there a regime in which T2 becomes necessary with depth?"""
    swept = [row for row in regimes if row["shallowest"] < row["deepest"]]
    if not swept:
        return _undecided("no regime has both methods at two depths")
    found = sum(map(needed_at_depth, swept))
    where = f"{found} of {len(swept)} regimes"
    if found:
        return _yes(f"in {where} T1 trains at the smallest P and only T1+T2 at the largest")
    if max(row["deepest"] for row in swept) < DEEP_STAGES:
        return _undecided(f"in {where}, and none reaches the paper's P = {DEEP_STAGES}")
    return _no(f"in {where} does T2 become necessary with depth")


def lighter(pipedream_over: float) -> Ruling:
    """Does PipeDream hold more? Bytes are counted, so there is no interval."""
    if math.isnan(pipedream_over):
        return _undecided("not counted")
    if pipedream_over > 1.0:
        return _yes("PipeDream holds more")
    return _no("PipeDream holds no more")


def as_light(most: float) -> Ruling:
    """Is the paper's ratio reached on some network? It follows from P/N and the optimizer, so where
    it is not, the pipeline is too short or its mini-batch too finely cut to tell."""
    if most >= PAPER_MEMORY:
        return _yes(f"{PAPER_MEMORY:g} is reached")
    return _undecided(f"{PAPER_MEMORY:g} is not reached at these P/N")


def exponent(fit: Row, expected: float) -> Ruling:
    """Is the exponent the paper's, to within the tolerance?"""
    low, high = expected - TOLERANCE, expected + TOLERANCE
    band = f"{expected:g} ± {TOLERANCE:g}"
    if low <= fit["low"] and fit["high"] <= high:
        return _yes(f"within {band}")
    if fit["high"] < low or fit["low"] > high:
        return _no(f"outside {band}")
    return _undecided(f"its interval and {band} overlap in part only")


def _known(gap: Row) -> Ruling | None:
    """What forbids to decide a gap at all."""
    if math.isnan(gap["mean"]):
        return _undecided(f"no seed in common with {gap['baseline']}")
    if math.isnan(gap["resolution"]):
        return _undecided("the records do not tell what the test set resolves")
    return None


def _few(n: float) -> str:
    if n >= MIN_SEEDS:
        return ""
    return (
        f" (fewer than {MIN_SEEDS} seeds: only {SINGLE_RUN:g} points or a factor of "
        f"{SINGLE_RUN_FACTOR:g} would count)"
    )


def _of(some: float, n: float) -> str:
    return f"{some:.0f} of {n:.0f} runs"


def _ends(found: Interval) -> str:
    return f"[{found.low:.2f}, {found.high:.2f}]"


def _yes(why: str) -> Ruling:
    return Ruling(Verdict.REPRODUCED, why)


def _no(why: str) -> Ruling:
    return Ruling(Verdict.NOT_REPRODUCED, why)


def _undecided(why: str) -> Ruling:
    return Ruling(Verdict.UNDECIDED, why)
