"""Every threshold, and the rules by which evidence becomes a verdict (those of C3 are in
`rules_depth`). Code applies them; none of the verdicts is typed by hand.

- A claim: `finding.overall`. Any finding not reproduced: not reproduced; else any that is not
  decidable, or none: not decidable; else reproduced.
- PipeMare is the row t1+t2+t3 where a network has it, else t1+t2 (`evidence.pipemare`).
- Rows are compared where they differ in their method alone. Where other settings differ
  (`alike.varied`), nothing is decided; where the workers or the machine do, nothing that a clock
  measured is compared.
- A gap is decided by an interval around its mean, the widest of: Student's over the paired seeds
  (the bootstrap of three values never leaves their range, and covers the mean in only about three
  cases of four), the bootstrap's, and the sampling error of the test samples. One that crosses the
  threshold decides nothing.
- BLEU has no such sampling error: no formula gives it, and as every seed of a translation task is
  tested on the same sentences, the spread over seeds does not contain it. `SINGLE_RUN` points stand
  in for it however many seeds there are.
- Memory and activations are those of runs that reached their end and filled their pipeline
  (`frames.measured`).
- No threshold is finer than the smallest step of the metric on the test set: 0.1% is never found,
  nor missed, on 360 samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from reproduce.claims.finding import Ruling, no, undecided, yes
from reproduce.statistics import Interval

MIN_SEEDS = 3
"""Below, the spread over seeds is not known and the next two stand in for it (assumed)"""
SINGLE_RUN = 5.0
"""Points that two single runs may differ by for their seeds alone (assumed)"""
SINGLE_RUN_FACTOR = 2.0
"""The same for times to a target, as a factor (assumed)"""
SHARES = frozenset({"accuracy"})
"""Metrics that are a share of test samples; only of these is the sampling error known"""
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
    if gap["metric"] not in SHARES:
        half.append(SINGLE_RUN)
    reach = math.inf if any(math.isnan(h) for h in half) else max(half)
    return Interval(gap["mean"], gap["mean"] - reach, gap["mean"] + reach, int(gap["n"]))


def learnt(metric: str, final: float) -> bool:
    """Whether a final metric is one of a network that learnt its task; not where there is none."""
    return final >= LEARNT.get(metric, -math.inf)


def equal(gap: Row, paper: float = PAPER_GAP) -> Ruling:
    """Is the method as good as synchronous training, to within the paper's gap or one step of the
    metric, whichever is larger?"""
    if gap["differ"]:
        return _differ(gap["differ"])
    if gap["baseline_diverged"]:
        return undecided(f"{gap['baseline']} itself diverges")
    if not learnt(gap["metric"], gap["baseline_final"]):
        return undecided(f"{gap['baseline']} has not learnt the task")
    if gap["diverged"]:
        return no(f"diverges in {of(gap['diverged'], gap['runs_n'])}, {gap['baseline']} in none")
    known = _known(gap)
    if known:
        return known
    found, margin = decisive(gap), max(paper, gap["resolution"])
    if found.high <= margin:
        return yes(f"the gap is within {margin:.2f}")
    if found.low > margin:
        return no(f"the gap is beyond {margin:.2f}")
    return undecided(f"{_ends(found)} has {margin:.2f} inside{_few(gap['n'])}")


def better(gap: Row) -> Ruling:
    """Is the method decidably better than the baseline, or does only the baseline diverge?"""
    base, other = gap["baseline"], gap["method"]
    if gap["differ"]:
        return _differ(gap["differ"])
    if gap["diverged"] and gap["baseline_diverged"]:
        return undecided(
            f"both diverge: {base} in {of(gap['baseline_diverged'], gap['baseline_n'])}, "
            f"{other} in {of(gap['diverged'], gap['runs_n'])}"
        )
    if gap["baseline_diverged"]:
        if not learnt(gap["metric"], gap["final"]):
            return undecided(f"{other} has not learnt the task either")
        some = of(gap["baseline_diverged"], gap["baseline_n"])
        if 2 * gap["baseline_diverged"] > gap["baseline_n"]:
            return yes(f"{base} diverges in {some}, {other} in none")
        return undecided(f"{base} diverges in {some} only")
    if not any(learnt(gap["metric"], gap[key]) for key in ("final", "baseline_final")):
        return undecided("neither has learnt the task")
    if gap["diverged"]:
        if not learnt(gap["metric"], gap["baseline_final"]):
            some = of(gap["diverged"], gap["runs_n"])
            return undecided(f"{other} diverges in {some}, {base} has not learnt the task")
        return no(f"{other} diverges in {of(gap['diverged'], gap['runs_n'])}, {base} in none")
    known = _known(gap)
    if known:
        return known
    found, step = decisive(gap), gap["resolution"]
    if found.high < -step:
        return yes(f"{other} is better by more than {step:.2f}")
    if found.low > step:
        return no(f"{other} is worse by more than {step:.2f}")
    return undecided(f"{_ends(found)} does not tell them apart{_few(gap['n'])}")


def faster(row: Row, base: Row) -> Ruling:
    """Is the target reached sooner than by synchronous training, with one device a stage?"""
    if row["differ"]:
        return _differ(row["differ"])
    if base["reached"] < base["n"]:
        return undecided(f"gpipe reaches it in {of(base['reached'], base['n'])}")
    if not row["reached"] and row["n"] >= MIN_SEEDS:
        return no("never reached in as many steps as gpipe was given")
    if row["reached"] < row["n"]:
        return undecided(f"reached in {of(row['reached'], row['n'])}{_few(row['n'])}")
    found = speedup(row)
    if math.isnan(found.low):
        return undecided("no seed in common with gpipe")
    if found.low > 1.0:
        return yes("sooner, wherever between two evaluations each got there")
    if found.high <= 1.0:
        return no("not sooner than gpipe")
    return undecided(f"{_ends(found)} has 1 inside{_few(found.n)}")


def speedup(row: Row) -> Interval:
    """The bounds of the speedup over the seeds that both have, wider where those are few."""
    n = int(row["pairs"])
    factor = SINGLE_RUN_FACTOR if n < MIN_SEEDS else 1.0
    ends = row["speedup_low"] / factor, row["speedup_high"] * factor
    return Interval(row["speedup_stages"], *ends, n)


def lighter(pipedream_over: float, differ: str = "") -> Ruling:
    """Does PipeDream hold more? Bytes are counted, so there is no interval."""
    if differ:
        return _differ(differ)
    if math.isnan(pipedream_over):
        return undecided("not counted")
    if pipedream_over > 1.0:
        return yes("PipeDream holds more")
    return no("PipeDream holds no more")


def as_light(most: float) -> Ruling:
    """Is the paper's ratio reached on some network? It follows from P/N and the optimizer, so where
    it is not, the pipeline is too short or its mini-batch too finely cut to tell."""
    if most >= PAPER_MEMORY:
        return yes(f"{PAPER_MEMORY:g} is reached")
    return undecided(f"{PAPER_MEMORY:g} is not reached at these P/N")


def exponent(fit: Row, expected: float) -> Ruling:
    """Is the exponent the paper's, to within the tolerance?"""
    low, high = expected - TOLERANCE, expected + TOLERANCE
    band = f"{expected:g} ± {TOLERANCE:g}"
    if low <= fit["low"] and fit["high"] <= high:
        return yes(f"within {band}")
    if fit["high"] < low or fit["low"] > high:
        return no(f"outside {band}")
    return undecided(f"its interval and {band} overlap in part only")


def _known(gap: Row) -> Ruling | None:
    """What forbids to decide a gap at all."""
    if math.isnan(gap["mean"]):
        return undecided(f"no seed in common with {gap['baseline']}")
    if math.isnan(gap["resolution"]):
        return undecided("the records do not tell what the test set resolves")
    return None


def _differ(differ: str) -> Ruling:
    return undecided(f"the rows differ in {differ}")


def _few(n: float) -> str:
    if n >= MIN_SEEDS:
        return ""
    return (
        f" (fewer than {MIN_SEEDS} seeds: only {SINGLE_RUN:g} points or a factor of "
        f"{SINGLE_RUN_FACTOR:g} would count)"
    )


def of(some: float, n: float) -> str:
    """`2 of 3 runs`."""
    return f"{some:.0f} of {n:.0f} runs"


def _ends(found: Interval) -> str:
    return f"[{found.low:.2f}, {found.high:.2f}]"
