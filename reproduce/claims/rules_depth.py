"""The rules of C3: whether T2 becomes necessary with depth. See `rules`, whose thresholds they use.

The rows of the deepest network are ruled on by divergence and by what was learnt. The runs of the
sweep over depths are short by design, too short to learn the task: they are ruled on by divergence
within their steps alone, and the finding says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from reproduce.claims.finding import Ruling, no, undecided, yes
from reproduce.claims.rules import DEEP_STAGES, Row, learnt, of


def needed(t1: Row, corrected: Row, base: Row | None, stages: int, differ: str = "") -> Ruling:
    """Does T1 alone diverge where T1+T2 trains? Rows of `evidence.quality`, and their P.

    Args:
        base: gpipe's row; None: the network has none.
        differ: settings in which these rows differ.
    """
    if differ:
        return undecided(f"the rows differ in {differ}")
    if base is not None and base["diverged"]:
        return undecided(f"gpipe itself diverges in {of(base['diverged'], base['n'])}")
    if base is not None and not learnt(base["metric"], base["mean"]):
        return undecided("gpipe itself has not learnt the task")
    if not t1["diverged"]:
        if not learnt(t1["metric"], t1["mean"]):
            return undecided("T1 alone does not diverge, and has not learnt the task either")
        if stages < DEEP_STAGES:
            return undecided(f"T1 alone trains at P = {stages}, the paper's is {DEEP_STAGES}")
        return no("T1 alone does not diverge")
    if corrected["diverged"] == corrected["n"]:
        if base is None:
            return undecided("T1+T2 diverges as well, and no gpipe row shows that anything trains")
        return no("T1+T2 diverges as well, gpipe trains")
    if t1["diverged"] < t1["n"] or corrected["diverged"]:
        return undecided(
            f"T1 diverges in {of(t1['diverged'], t1['n'])}, T1+T2 in "
            f"{of(corrected['diverged'], corrected['n'])}"
        )
    if not learnt(corrected["metric"], corrected["mean"]):
        return undecided("T1+T2 does not diverge, and has not learnt the task either")
    return yes(f"T1 diverges in {of(t1['diverged'], t1['n'])}, T1+T2 trains")


def needed_at_depth(regime: Row) -> bool:
    """T1 does not diverge at the smallest P and does at the largest, where T1+T2 does not."""
    ends = regime["t1_shallow"], regime["t1_deep"], regime["t2_deep"]
    deeper = regime["shallowest"] < regime["deepest"]
    return deeper and not regime["differ"] and ends == (0.0, 1.0, 0.0)


def needed_where(regime: Row) -> str:
    """What a regime says of T2, in a clause."""
    if regime["differ"]:
        return f"its runs differ in {regime['differ']}"
    if needed_at_depth(regime):
        return "T2 is necessary at the largest P and not at the smallest"
    if not regime["deepest"]:
        return "no depth has both methods"
    if regime["shallowest"] == regime["deepest"]:
        return "one depth alone says nothing of depth"
    if regime["t2_deep"]:
        return "T2 does not keep every run from diverging at the largest P"
    if not regime["t1_deep"]:
        return "T1 alone does not diverge at the largest P: T2 is not necessary for that"
    if regime["t1_shallow"]:
        return "T2 is necessary, but at the smallest P already: it is not depth that decides"
    return "some runs of T1 alone diverge at the largest P, not all"


def needed_somewhere(regimes: Sequence[Row], unfinished: int = 0) -> Ruling:
    """Is there a regime in which T2 becomes necessary with depth?

    Args:
        unfinished: cells of the sweep without a finished run: they may yet be such a regime.
    """
    if not any(row["shallowest"] < row["deepest"] for row in regimes):
        return undecided("no regime has both methods at two depths")
    found = sum(map(needed_at_depth, regimes))
    where = f"{found} of {len(regimes)} regimes"
    if found:
        return yes(
            f"in {where} T1 alone diverges at the largest P, and neither it at the smallest nor "
            "T1+T2 at the largest; by divergence alone"
        )
    if any(row["differ"] for row in regimes):
        return undecided(f"in {where}, and the runs of some differ in more than P and the method")
    short = [row for row in regimes if row["deepest"] < DEEP_STAGES]
    if short:
        return undecided(
            f"in {where}, and {len(short)} of them do not reach the paper's P = {DEEP_STAGES}"
        )
    if unfinished:
        return undecided(f"in {where}, and {unfinished} cells of the sweep are not finished")
    return no(f"in {where} does T2 become necessary with depth, by divergence alone")
