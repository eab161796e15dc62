"""C3: T1 against T1+T2 on the deepest network, over depth, and how well T2 approximates."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from reproduce.claims import rules, rules_depth
from reproduce.claims.alike import varied
from reproduce.claims.build import Row, absent, missing, percent, row, rows, seeds, unfinished
from reproduce.claims.depths import regime as regime_of
from reproduce.claims.evidence import approximation, depth, networks, quality, regimes
from reproduce.claims.finding import Claim, Finding
from reproduce.claims.frames import flat, place
from reproduce.records import Records

PAPER = "ResNet-152 at 150 stages diverges without T2"


def claim(records: Records, cells: Collection[str] = ()) -> Claim:
    deep = [name for name in networks(records, cells) if name.endswith(rules.DEEP)]
    found: list[Finding] = []
    lacking: list[str] = []
    for network in deep:
        found += _rows(records, network)
        found += unfinished(records, cells, network, ("t1", "t1+t2"), PAPER)
        lacking += missing(records, network, ("gpipe", "t1", "t1+t2"))
    if not found:
        found.append(absent(f"T1 against T1+T2 on {rules.DEEP}", PAPER))
        lacking = lacking or [f"a {rules.DEEP} at 150 stages with the rows gpipe, t1 and t1+t2"]
    swept = regimes(depth(records))
    done = set(records.runs["cell"])
    to_run = [cell for cell in cells if place(cell)[1] == "depth" and cell not in done]
    if to_run:
        lacking.append(f"{len(to_run)} cells of the sweep depth")
    elif swept.empty:
        lacking.append("a sweep named depth, over stages, with the rows t1 and t1+t2")
    found += _sweep(rows(swept), len(to_run))
    found += _approximation(records)
    return Claim(
        "C3", "Discrepancy correction is required at depth", "strong", PAPER, tuple(found),
        tuple(lacking),
    )  # fmt: skip


def _rows(records: Records, network: str) -> Iterator[Finding]:
    found = quality(records)
    base, t1, both = (
        row(found, network=network, method=method) for method in ("gpipe", "t1", "t1+t2")
    )
    if t1 is None or both is None:
        return
    three = [cell for cell in (base, t1, both) if cell is not None]
    runs = records.runs_of(network=network)
    runs = runs[runs["cell"].isin([cell["cell"] for cell in three])]
    stages = int(runs.loc[runs["cell"] == t1["cell"], "set_stages"].iloc[0])
    ruling = rules_depth.needed(t1, both, base, stages, varied(runs))
    yield Finding(
        what=f"{network}: {stages} stages, t1 and t1+t2",
        paper=PAPER,
        measured=f"t1 {_end(t1)}, t1+t2 {_end(both)}; "
        f"{'no row of gpipe' if base is None else f'gpipe {_end(base)}'}; one step of the metric "
        f"on the test set is {both['resolution']:.2f}",
        value=None if math.isnan(both["mean"]) else both["mean"],
        verdict=ruling.verdict,
        why=ruling.why,
        cells=tuple(cell["cell"] for cell in three),
        runs=flat(cell["runs"] for cell in three),
    )


def _end(cell: Row) -> str:
    if cell["diverged"]:
        return f"diverges in {cell['diverged']} of {cell['n']} runs"
    ends = f" [{cell['low']:.2f}, {cell['high']:.2f}]" if cell["n"] > 1 else ""
    return f"ends at {percent(cell['mean'])}{ends} over {seeds(int(cell['n']))}"


def _sweep(swept: list[Row], unfinished_cells: int) -> Iterator[Finding]:
    """Over all regimes, which a verdict follows from, then regime by regime."""
    if not swept:
        return
    ruling = rules_depth.needed_somewhere(swept, unfinished_cells)
    needed = sum(map(rules_depth.needed_at_depth, swept))
    yield Finding(
        what="depth sweep: regimes in which T2 becomes necessary as P grows",
        paper="T2 looks optional until the pipeline is deep",
        measured=f"{needed} of {len(swept)}; told by who diverges, not by what is learnt: the "
        "runs of the sweep are short by design",
        value=float(needed),
        verdict=ruling.verdict,
        why=ruling.why,
        cells=flat(regime["cells"] for regime in swept),
        runs=flat(regime["runs"] for regime in swept),
    )
    for regime in swept:
        yield Finding(
            what=f"{regime['network']}, {regime['regime'] or 'its own settings'}",
            paper="not given",
            measured=_regime_text(regime),
            value=None if math.isnan(regime["needed_from"]) else regime["needed_from"],
            why=rules_depth.needed_where(regime),
            cells=regime["cells"],
            runs=regime["runs"],
        )


def _regime_text(regime: Row) -> str:
    if not regime["deepest"]:
        return f"no P with runs of both methods; {_learning(regime)}"
    least, ends = regime["needed_from"], (regime["shallowest"], regime["deepest"])
    t1 = " and ".join(
        f"{share:.0%} at P = {p}"
        for share, p in zip((regime["t1_shallow"], regime["t1_deep"]), ends, strict=True)
    )
    return (
        f"smallest P where only T1 diverges: {'none' if math.isnan(least) else f'{least:.0f}'}; "
        f"runs that diverge: T1 {t1}, T1+T2 {regime['t2_deep']:.0%} there; {_learning(regime)}; "
        f"{seeds(int(regime['n']))} a point"
    )


def _learning(regime: Row) -> str:
    """How far the runs go that do not diverge, and whether any of them learns the task."""
    ended = regime["ended"]
    if not ended:
        return "every run diverges"
    learnt = f"{regime['learnt']} of these" if regime["learnt"] else "none of these"
    return (
        f"{ended} {'run does' if ended == 1 else 'runs do'} not diverge in {regime['steps']:.0f} "
        f"steps, {learnt} had learnt the task at its end"
    )


def _approximation(records: Records) -> Iterator[Finding]:
    """The paper leaves it open, so no verdict follows from it."""
    keys = ["network", "regime", "method"]
    for (network, regime, method), group in approximation(records).groupby(keys):
        by_p = group.groupby("stages")["ratio"].median()
        told = ", ".join(f"{ratio:.2f} at P = {p}" for p, ratio in by_p.items())
        runs = records.runs_of("approximation", network=network, method=method)
        runs = runs[runs["variant"].map(regime_of) == regime]
        yield Finding(
            what=f"{network}/{method}{regime and ', '}{regime}: how far T2's weights are from the "
            "forward pass's, as a share of how far the live ones are (median over stages)",
            paper="not characterised as a function of depth",
            measured=f"{told}; below 1 the correction helps; {seeds(int(group['n'].min()))} a P",
            value=float(by_p.iloc[-1]),
            why="the paper says nothing that it could be held against",
            cells=tuple(dict.fromkeys(runs["cell"])),
            runs=tuple(runs["mlflow_run_id"]),
        )
