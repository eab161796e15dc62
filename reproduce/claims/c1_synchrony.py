"""C1: quality against synchronous training, the utilization won, and time to target."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from pandas import DataFrame

from reproduce.claims import rules
from reproduce.claims.build import (
    Row,
    absent,
    gap_finding,
    missing,
    row,
    seeds,
    unfinished,
    utilization_findings,
)
from reproduce.claims.evidence import gaps, networks, pipemare, time_to_target, utilization
from reproduce.claims.finding import Claim, Finding
from reproduce.records import Records

QUALITY = "largest gap to synchronous training 0.1% top-1"
SPEED = "up to 4.6 times the utilization of GPipe at the same quality"
AMORTISED = "the model is arithmetic in N, P and the share of synchronous steps"


def claim(records: Records, cells: Collection[str] = ()) -> Claim:
    found: list[Finding] = []
    lacking: list[str] = []
    of_gaps, times, used = gaps(records), time_to_target(records), utilization(records)
    for network in networks(records, cells):
        method = pipemare(records, network, cells)
        gap = row(of_gaps, network=network, method=method)
        if gap is not None:
            found.append(gap_finding(gap, rules.equal(gap), QUALITY))
        found += unfinished(records, cells, network, ("gpipe", method), QUALITY)
        found += _time(times, network, method)
        found += utilization_findings(used, network, method, "up to 4.6 times", AMORTISED)
        lacking += missing(records, network, ("gpipe", method))
        if row(times, network=network) is None and len(records.runs_of(network=network)):
            lacking.append(f"{network}: a target, for time to target")
    if not any(finding.paper == QUALITY for finding in found):
        found.append(absent("quality against synchronous training", QUALITY))
        lacking = lacking or ["a network with the rows gpipe and t1+t2 (or t1+t2+t3)"]
    return Claim(
        "C1",
        "Pipeline parallelism does not require synchronous execution",
        "strong",
        f"four tasks, {QUALITY}; {SPEED}",
        tuple(found),
        tuple(lacking),
    )


def _time(times: DataFrame, network: str, method: str) -> Iterator[Finding]:
    """Time to the network's target, by the model and by the clock."""
    mine, base = (row(times, network=network, method=m) for m in (method, "gpipe"))
    if mine is None or base is None:
        return
    ruling = rules.faster(mine, base)
    known = not math.isnan(mine["speedup_low"])  # nor where the rows differ
    yield Finding(
        what=f"{network}: time to {mine['target']:g}% of {method}, one device a stage (model)",
        paper=SPEED,
        measured=_time_text(mine, base),
        value=mine["speedup_stages"] if known else None,
        interval=rules.speedup(mine) if known else None,
        verdict=ruling.verdict,
        why=ruling.why,
        cells=(*base["cells"], *mine["cells"]),
        runs=(*base["runs"], *mine["runs"]),
    )


def _time_text(mine: Row, base: Row) -> str:
    if math.isnan(mine["steps"]) or math.isnan(base["steps"]):
        return (
            f"reached in {mine['reached']} of {mine['n']} runs, by gpipe in {base['reached']} of "
            f"{base['n']}; best {mine['best']:.2f}, of gpipe {base['best']:.2f}"
        ).replace("nan", "–")
    steps = (
        f"{mine['steps']:.0f} steps at utilization {mine['utilization_stages']:.2f}, gpipe "
        f"{base['steps']:.0f} at {base['utilization_stages']:.2f}"
    )
    if math.isnan(mine["speedup_low"]):
        return f"not compared; {steps}"
    ends = f"[{mine['speedup_low']:.2f}, {mine['speedup_high']:.2f}]"
    return (
        f"{mine['speedup_stages']:.2f} {ends} times as fast over {seeds(int(mine['pairs']))}, "
        f"between the evaluations around the target; {steps}; {_clock(mine, base)}"
    )


def _clock(mine: Row, base: Row) -> str:
    """What was measured, where both ran on the same workers of the same machine."""
    if mine["placed"]:
        return f"not compared on the workers used: {mine['placed']}"
    if math.isnan(mine["speedup_workers"]):
        return "utilization on the workers not measured"
    return (
        f"on the workers used {mine['speedup_workers']:.2f} times by utilization, "
        f"{mine['speedup_seconds']:.2f} times by the clock ({mine['seconds']:.0f} s, gpipe "
        f"{base['seconds']:.0f} s)"
    )
