"""Made records that have something for every figure, and what figures are asked for in tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from paper_figures.material import Material
from reproduce.schedule import Ticks
from reproduce.tables import Table, parse

from ..made import made, run

R50, R152, PHRASES = "digits-resnet50", "digits-resnet152", "phrases-transformer"
SEEDS = range(3)
TOML = """
[defaults]
width = 2
batch_size = 128
microbatches = 16
steps = 600
lr = 0.01
annealing_steps = 300
decay = 0.1
sync_steps = 100

[network.digits-resnet50]
methods = [
    "gpipe", "pipedream", "async", "t1", "t1+t2", "hogwild", "hogwild+t1", "hogwild-lockfree",
]
seeds = 3
stages = 107

[network.digits-resnet152]
methods = ["gpipe", "t1", "t1+t2"]
stages = 150
"""
FINALS = {
    "gpipe": 96.0, "pipedream": 95.0, "t1": 94.0, "t1+t2": 93.0, "hogwild": 92.0,
    "hogwild+t1": 95.5, "hogwild-lockfree": 91.0,
}  # fmt: skip


def table(text: str = TOML) -> Table:
    return Table("made", Path("made.toml"), parse(text, "made"))


def material(rows: Iterable[Mapping[str, Any]], text: str = TOML) -> Material:
    return Material(table(text), made([dict(row) for row in rows]))


def grid(seeds: Iterable[int] = SEEDS) -> list[dict[str, Any]]:
    """ResNet-50 with every kind of row (async diverges), ResNet-152 with T1 diverging."""
    rows = []
    for seed in seeds:
        for method, final in FINALS.items():
            value = final + 0.5 * seed
            counted = {"tau_fwd": 0.0, "tau_bkwd": 0.0}
            stages = [
                {"stage": i, **counted}
                | ({} if method == "gpipe" else {"tau_fwd": float(Ticks(107, 8).tau(i))})
                for i in range(1, 108)
            ]
            delays = {1: 10, 2: 30} if "lockfree" in method else {}
            curve = {300: value - 10.0, 600: value}
            rows.append(
                run(R50, method, seed, final=value, curve=curve, stages=stages, delays=delays)
            )
        rows.append(run(R50, "async", seed, diverged_at=30 + seed))
    rows.append(run(R152, "gpipe", final=92.0))
    rows.append(run(R152, "t1", diverged_at=90))
    rows.append(run(R152, "t1+t2", final=94.0))
    return rows


def sweeps() -> list[dict[str, Any]]:
    """A few runs of each sweep."""
    rows = []
    for p in (10, 150):
        deep = {"variant": f"depth:stages={p},lr=0.005", "set_stages": p}
        fate: dict[str, Any] = {"diverged_at": 20} if p == 150 else {"final": 50.0}
        rows.append(run(R152, "t1", **deep, **fate))
        rows.append(run(R152, "t1+t2", final=60.0, **deep))
    ratios = [
        {"stage": i, "tau_fwd": 5.0 - i, "tau_bkwd": 0.0, "t2_ratio": 0.2 * i} for i in (1, 2)
    ]
    rows.append(run(R50, "t1+t2", variant="approximation:stages=2", set_stages=2, stages=ratios))
    for p in (16, 36, 64):
        for segment in (0, int(p**0.5)):
            bytes_ = 1000 * p**2 if not segment else 2000 * round(p**1.5)
            rows.append(
                run(
                    PHRASES, "t1", variant=f"activations:stages={p},segment={segment}", units=p,
                    set_stages=p, set_segment=segment, memory_activations_peak=bytes_,
                )
            )  # fmt: skip
    for p in (14, 54, 107):
        rows.append(
            run(
                R50, "t1", variant=f"cuts:stages={p}", set_stages=p, set_batch_size=64, steps=60,
                loop_s=30.0, memory_activations_peak=p * 10**6,
            )
        )  # fmt: skip
    for method in ("gpipe", "t1"):
        small = {"set_stages": 2, "set_microbatches": 2, "variant": "trace:stages=2"}
        rows.append(run(R50, method, trace=events(), **small))
    return rows


def events(minibatches: int = 6) -> list[dict[str, Any]]:
    """Two workers with a stage each that pass two micro-batches a mini-batch to and fro."""
    found, now = [], 0.0
    for m in range(2 * minibatches):
        for worker, kind in ((0, "F"), (1, "F"), (1, "B"), (0, "B")):
            found.append(_event(worker, kind, m, now, now + 0.01))
            now += 0.01
        if m % 2:
            found += [_event(worker, "U", m, now, now + 0.002) for worker in (0, 1)]
            now += 0.002
    found.append(_event(1, "W", -1, 0.0, 0.01))
    return found


def _event(worker: int, kind: str, m: int, start: float, end: float) -> dict[str, Any]:
    return {
        "worker": worker, "kind": kind, "stage": worker + 1, "microbatch": m, "start_s": start,
        "end_s": end,
    }  # fmt: skip


def full() -> Material:
    return material([*grid(), *sweeps()])


def words(figure: Figure) -> str:
    """All that a figure says, its lines joined."""
    texts = [text.get_text() for text in figure.findobj(Text)]
    return " | ".join(" ".join(text.split()) for text in texts if text.strip())


def panel(figure: Figure, title: str) -> Axes:
    """The one panel whose title has this in it."""
    (found,) = [axes for axes in figure.axes if title in axes.get_title(loc="left")]
    return found


def points(axes: Axes, marker: str, colour: str | None = None) -> list[tuple[float, float]]:
    """The points of the lines with this marker (and colour)."""
    lines = [
        line
        for line in axes.lines
        if line.get_marker() == marker and colour in (None, line.get_color())
    ]
    return [point for line in lines for point in _xy(line)]


def _xy(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]
