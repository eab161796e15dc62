"""What the five claims share: findings out of gaps, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pandas import DataFrame

from reproduce.claims import rules
from reproduce.claims.finding import Finding, Ruling, Verdict
from reproduce.records import Records
from reproduce.statistics import Interval

Row = dict[str, Any]
"""One row of a frame of evidence"""


def rows(frame: DataFrame, **columns: Any) -> list[Row]:
    """The rows with these values in these columns."""
    for key, value in columns.items():
        frame = frame[frame[key] == value]
    found: list[Row] = frame.to_dict("records")
    return found


def row(frame: DataFrame, **columns: Any) -> Row | None:
    """The one such row, if there is one."""
    return next(iter(rows(frame, **columns)), None)


def gap_finding(gap: Row, ruling: Ruling, paper: str, more: str = "") -> Finding:
    """A gap, what was ruled on it, and all that it was ruled by."""
    told = not math.isnan(gap["mean"])
    return Finding(
        what=f"{gap['network']}: {gap['baseline']} − {gap['method']}",
        paper=paper,
        measured=gap_text(gap) + (f"; {more}" if more else ""),
        value=gap["mean"] if told else None,
        interval=rules.decisive(gap) if told else None,
        verdict=ruling.verdict,
        why=ruling.why,
        cells=gap["cells"],
        runs=gap["runs"],
    )


def gap_text(gap: Row) -> str:
    """`gap 1.20 [0.40, 2.10] points of accuracy over 3 seeds; gpipe 95.00, t1 93.80; ...`; in place
    of a gap that is not known, who diverged."""
    base, other = gap["baseline"], gap["method"]
    step = f"one step of the metric on the test set is {gap['resolution']:.2f}"
    if math.isnan(gap["mean"]):
        told = "; ".join(
            f"{name} diverges in {some} of {n} runs"
            for name, some, n in (
                (other, gap["diverged"], gap["runs_n"]),
                (base, gap["baseline_diverged"], gap["baseline_n"]),
            )
            if some
        )
        ends = [
            f"; {name} ends at {final:.2f} elsewhere"
            for name, final in ((base, gap["baseline_final"]), (other, gap["final"]))
            if not math.isnan(final)
        ]
        return f"{told or 'no seed in common'}{''.join(ends)}; {step}"
    gap_over_seeds = Interval(gap["mean"], gap["low"], gap["high"], gap["n"]).text()
    error = f", of the test samples' ±{gap['sampling']:.2f}" if gap["sampling"] else ""
    few = f", of ±{rules.SINGLE_RUN:g} for few seeds" if gap["n"] < rules.MIN_SEEDS else ""
    if gap["metric"] not in rules.SHARES:
        few += (
            f", of ±{rules.SINGLE_RUN:g} for the test part, which is the same for every seed, so "
            "that their spread does not contain its error"
        )
    decided = rules.decisive(gap)
    return (
        f"gap {gap_over_seeds} points over {seeds(gap['n'])}; {base} {gap['baseline_final']:.2f}, "
        f"{other} {gap['final']:.2f}; {step}; decided by [{decided.low:.2f}, {decided.high:.2f}], "
        f"the widest of the seeds' interval{error}{few}"
    )


def percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def seeds(n: int) -> str:
    return f"{n} seed{'s' if n != 1 else ''}"


def unfinished(
    records: Records, cells: Collection[str], network: str, methods: Sequence[str], paper: str
) -> list[Finding]:
    """The finding, with nothing to decide it, on two rows that the table asks for and of which one
    or both are not finished; none where the table does not ask for both."""
    names = [f"{network}/{method}" for method in methods]
    lacking = missing(records, network, methods)
    if not lacking or not set(names) <= set(cells):
        return []
    what = f"{network}: {' − '.join(methods)}"
    return [absent(what, paper, f"not finished: {', '.join(lacking)}")]


def absent(what: str, paper: str, why: str = "no finished cells") -> Finding:
    """A part of a claim that no cell says enough of."""
    return Finding(what, paper, "nothing", verdict=Verdict.UNDECIDED, why=why)


def missing(records: Records, network: str, methods: Iterable[str]) -> list[str]:
    """The cells of these methods that the network has no finished run of."""
    there = set(records.runs_of(network=network)["method"])
    return [f"{network}/{method}" for method in methods if method not in there]


def utilization_findings(
    used: DataFrame, network: str, method: str, paper: str, why: str
) -> list[Finding]:
    """What `evidence.utilization` has of a method, if anything, as information."""
    found = row(used, network=network, method=method)
    if found is None or (math.isnan(found["over_stages"]) and not found["differ"]):
        return []
    return [
        Finding(
            what=f"{network}: utilization of {method} over gpipe's",
            paper=paper,
            measured=_utilization_text(found),
            value=None if found["differ"] else found["over_stages"],
            why=why,
            cells=found["cells"],
            runs=found["runs"],
        )
    ]


def _utilization_text(found: Row) -> str:
    """The model with a device a stage, and what was measured on the workers used, if gpipe's was
    measured on the same."""
    if found["differ"]:
        return f"not compared; the rows differ in {found['differ']}"
    told = (
        f"{found['over_stages']:.2f} times by the model with one device a stage; P = "
        f"{found['stages']}, N = {found['microbatches']}, amortised over the warm-up; "
    )
    if found["placed"]:
        return f"{told}not compared on the workers used: {found['placed']}"
    if math.isnan(found["over_measured"]):
        return f"{told}not measured on the workers"
    return (
        f"{told}measured on {found['workers']} workers {found['measured']:.2f}, "
        f"{found['over_measured']:.2f} times gpipe's"
    )
