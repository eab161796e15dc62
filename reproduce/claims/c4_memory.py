"""C4: memory and final quality against PipeDream's weight stashing."""

from __future__ import annotations

import math
from collections.abc import Collection

from pandas import DataFrame

from reproduce.claims import rules
from reproduce.claims.build import Row, absent, gap_finding, missing, row, rows, unfinished
from reproduce.claims.evidence import gaps, memory, networks, pipemare
from reproduce.claims.finding import Claim, Finding
from reproduce.claims.frames import flat
from reproduce.records import Records

MEMORY = "up to 2 times less weight and optimizer memory than PipeDream"
QUALITY = "at a final quality PipeDream does not reach"
MEGA = 1e-6


def claim(records: Records, cells: Collection[str] = ()) -> Claim:
    found: list[Finding] = []
    lacking: list[str] = []
    held, of_gaps = memory(records), gaps(records, "pipedream")
    for network in networks(records, cells):
        method = pipemare(records, network, cells)
        lacking += missing(records, network, ("pipedream", method))
        found += _memory(records, held, network, method)
        found += unfinished(records, cells, network, ("pipedream", method), f"{MEMORY}, {QUALITY}")
        gap = row(of_gaps, network=network, method=method)
        if gap is not None:
            found.append(gap_finding(gap, rules.better(gap), QUALITY))
        found += _context(held, network)
    ratios = [f for f in found if f.paper == MEMORY and f.value is not None]
    if ratios:
        found.append(_most(ratios))
    else:
        why = "no run of both rows that reached its end"
        found.append(absent("memory against PipeDream", MEMORY, why))
        lacking = lacking or ["a network with the rows pipedream and t1+t2 (or t1+t2+t3)"]
    return Claim(
        "C4",
        "Asynchrony beats stashing on the memory/quality frontier",
        "moderate",
        f"{MEMORY}, {QUALITY}",
        tuple(found),
        tuple(lacking),
    )


def _memory(records: Records, held: DataFrame, network: str, method: str) -> list[Finding]:
    mine, other = (row(held, network=network, method=m) for m in (method, "pipedream"))
    if mine is None or other is None:
        return _uncounted(records, network, method)
    ratio = mine["pipedream_over"]
    ruling = rules.lighter(ratio, mine["pipedream_differ"])
    over = "not compared" if math.isnan(ratio) else f"{ratio:.2f} times"
    return [
        Finding(
            what=f"{network}, {mine['optimizer']}: memory of pipedream over {method}'s",
            paper=MEMORY,
            measured=f"{over}; {_parts(method, mine)}; {_parts('pipedream', other)}",
            value=None if math.isnan(ratio) else ratio,
            verdict=ruling.verdict,
            why=ruling.why,
            cells=(other["cell"], mine["cell"]),
            runs=(*other["runs"], *mine["runs"]),
        )
    ]


def _uncounted(records: Records, network: str, method: str) -> list[Finding]:
    """Where both rows have runs and one has none that reached its end: information, as it says
    something of quality and nothing of memory."""
    if missing(records, network, (method, "pipedream")):
        return []
    runs = records.runs_of(network=network)
    rows_of = [runs[runs["method"] == name] for name in ("pipedream", method)]
    return [
        Finding(
            what=f"{network}: memory of pipedream over {method}'s",
            paper=MEMORY,
            measured="not counted",
            why="a row has no run that reached its end and filled its pipeline",
            cells=flat(tuple(row["cell"]) for row in rows_of),
            runs=flat(tuple(row["mlflow_run_id"]) for row in rows_of),
        )
    ]


def _parts(method: str, held: Row) -> str:
    named = {
        "weights": "weights",
        "optimizer_bytes": "optimizer",
        "discrepancy": "δ",
        "stash": "stash",
    }
    parts = " + ".join(f"{name} {held[key] * MEGA:.2f}" for key, name in named.items() if held[key])
    return f"{method} {held['total'] * MEGA:.2f} MB = {parts}"


def _most(ratios: list[Finding]) -> Finding:
    """The network with the largest ratio, against the paper's "up to"."""
    most = max(ratios, key=lambda finding: finding.value or 0.0)
    ruling = rules.as_light(most.value or 0.0)
    return Finding(
        what="the largest of these ratios",
        paper=MEMORY,
        measured=f"{most.value:.2f} times; {most.what.partition(':')[0]}",
        value=most.value,
        verdict=ruling.verdict,
        why=ruling.why,
        cells=most.cells,
        runs=most.runs,
    )


def _context(held: DataFrame, network: str) -> list[Finding]:
    """What the other rows hold, over GPipe's."""
    base = row(held, network=network, method="gpipe")
    if base is None:
        return []
    others = held[(held["network"] == network) & (held["method"] != "gpipe")]
    told = ", ".join(
        f"{other['method']} "
        + ("of other settings" if other["gpipe_differ"] else f"{other['over_gpipe']:.2f}")
        for other in rows(others)
    )
    return [
        Finding(
            what=f"{network}, {base['optimizer']}: memory over gpipe's",
            paper="not given",
            measured=f"{told or 'no other row'}; {_parts('gpipe', base)}",
            cells=tuple(held[held["network"] == network]["cell"]),
            runs=flat(held[held["network"] == network]["runs"]),
        )
    ]
