"""C5: how activations grow with the number of stages, and what recompute makes of that."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from reproduce.claims import rules
from reproduce.claims.activations import SERIES
from reproduce.claims.build import Row, absent, rows
from reproduce.claims.evidence import activations, exponents, throughput
from reproduce.claims.finding import Claim, Finding
from reproduce.claims.frames import flat
from reproduce.records import Records
from reproduce.statistics import Interval, power_law

PAPER = "activation memory is quadratic in the stage count, throughput linear"
KEPT = "grows as P²"
FEW = "fewer than three depths at one weighted layer a stage"
FLUSHES = "a flush after every mini-batch bounds what is held: the claim is about methods without"
RECOMPUTED = "recompute across segments of stages; P^1.5 with √P stages a segment, by arithmetic"


def claim(records: Records, cells: Collection[str] = ()) -> Claim:
    """About methods without flushes; of others the exponents are information."""
    fits = exponents(activations(records))
    found: list[Finding] = []
    lacking: list[str] = []
    for recompute, paper in ((False, KEPT), (True, RECOMPUTED)):
        of_kind = [_exponent(records, fit, paper) for fit in rows(fits, recompute=recompute)]
        found += of_kind
        if all(finding.verdict is None for finding in of_kind):
            found.append(absent(f"activations {_kind(recompute)}", paper, FEW))
            segment = "segment near √P" if recompute else "segment = 0"
            lacking.append(
                f"a sweep named activations: one layer a stage at three P or more, {segment}"
            )
    cut = throughput(records)
    if cut.empty:
        lacking.append("a sweep named cuts: one network at several P, for throughput")
    for _, group in cut.groupby([*SERIES, "workers"]):
        found += _cut(rows(group))
    return Claim(
        "C5", "Activation memory scales quadratically in stages", "strong", PAPER, tuple(found),
        tuple(lacking),
    )  # fmt: skip


def _kind(recompute: bool) -> str:
    return "with recompute in segments of √P stages" if recompute else "kept"


def _exponent(records: Records, fit: Row, paper: str) -> Finding:
    recompute = bool(fit["recompute"])
    of_series = {key: fit[key] for key in SERIES}
    points = rows(activations(records), **of_series, recompute=recompute, fits=True)
    ruling = rules.exponent(fit, rules.RECOMPUTED if recompute else rules.ACTIVATIONS)
    interval = Interval(fit["exponent"], fit["low"], fit["high"], int(fit["n"]))
    bytes_at = ", ".join(f"{p['bytes'] / 1e6:.2f} MB at P = {p['stages']}" for p in points)
    return Finding(
        what=f"{_named(fit)}: exponent of P, activations {_kind(recompute)}",
        paper="not given" if fit["flushes"] else paper,
        measured=f"{interval.text()} over {fit['n']} depths; {bytes_at}; one weighted layer a "
        "stage, measured peaks",
        value=fit["exponent"],
        interval=interval,
        verdict=None if fit["flushes"] else ruling.verdict,
        why=FLUSHES if fit["flushes"] else ruling.why,
        cells=tuple(fit["cells"]),
        runs=tuple(fit["runs"]),
    )


def _named(series: Row) -> str:
    return f"{series['network']}/{series['method']}, batch {series['batch_size']}, " + (
        f"N = {series['microbatches']}"
    )


def _cut(points: list[Row]) -> Iterator[Finding]:
    """One network cut ever finer: information, whatever comes out."""
    named = _named(points[0])
    cells, runs = flat(p["cells"] for p in points), flat(p["runs"] for p in points)
    counted = all(point["bytes"] > 0 for point in points)
    if counted and len({point["stages"] for point in points}) >= 3:
        law = power_law([p["stages"] for p in points], [p["bytes"] for p in points])
        yield Finding(
            what=f"{named}, cut into more stages: exponent of P, activations kept",
            paper="not given",
            measured=f"{Interval(law.exponent, law.low, law.high, law.n).text()} over {law.n} cuts",
            value=law.exponent,
            interval=Interval(law.exponent, law.low, law.high, law.n),
            why="about 1 by arithmetic: a stage holds 2(P−i)+2 micro-batches of 1/P of the "
            "network's activations, P+1 times the whole in all; P² takes networks that grow with P",
            cells=cells,
            runs=runs,
        )
    rates = ", ".join(f"{p['samples_per_s']:.0f} at P = {p['stages']}" for p in points)
    if points[0]["placed"]:
        rates = f"not compared: {points[0]['placed']}"
    yield Finding(
        what=f"{named}: samples a second against P",
        paper="throughput is linear in the stage count",
        measured=f"{rates}; on {points[0]['workers']} workers",
        why="not decidable here: the linear claim is about one device a stage",
        cells=cells,
        runs=runs,
    )
