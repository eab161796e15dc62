"""Every figure: its name, the function that draws it, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure

from paper_figures import theory
from paper_figures.claim1 import claim1
from paper_figures.claim2 import claim2
from paper_figures.claim3 import claim3
from paper_figures.claim4 import claim4
from paper_figures.claim5 import claim5
from paper_figures.claims import claims_table
from paper_figures.curves import curves
from paper_figures.delays import delays
from paper_figures.material import Material
from paper_figures.schedule import schedule
from paper_figures.timeline import timeline
from paper_figures.utilization import utilization


class Row(NamedTuple):
    """One figure."""

    draw: Callable[[Material], Figure]
    """Raises Missing where the records have nothing for it"""
    caption: str


FIGURES: dict[str, Row] = {
    "claims": Row(
        claims_table,
        "The claims of the paper, the findings that each verdict follows from, and what the paper "
        "says of them.",
    ),
    "c1": Row(
        claim1,
        "Quality that each asynchronous method loses against GPipe, and how much sooner it "
        "reaches the target.",
    ),
    "c2": Row(
        claim2,
        "Final quality without T1 and with it, in the pipeline and under Hogwild!'s delays.",
    ),
    "c3": Row(
        claim3,
        "The deepest network with T1 alone and with T2, who diverges at which depth, and how "
        "far T2's weights are from those of the forward pass.",
    ),
    "c4": Row(
        claim4,
        "Final quality over the memory of weights, optimizer, T2's δ and stash, for each "
        "network and its optimizer.",
    ),
    "c5": Row(
        claim5,
        "Peak of the activations over the number of stages, kept and recomputed, with fitted "
        "exponents; memory and throughput of one network in ever finer cuts.",
    ),
    "curves": Row(curves, "Learning curves of every row of the grid: metric and training loss."),
    "schedule": Row(
        lambda _: schedule(),
        "The schedules, from the functions that the engines run on: GPipe's flushes and "
        "PipeMare's ticks.",
    ),
    "timeline": Row(
        timeline, "What the workers did in a stretch of a traced run, as measured on this machine."
    ),
    "utilization": Row(
        lambda material: utilization(material.table),
        "What GPipe leaves idle for N micro-batches on P devices, and so what an asynchronous "
        "pipeline can gain; the networks of this table are marked.",
    ),
    "delays": Row(
        delays,
        "Delays counted from the weight versions that passes read, against the formula; and the "
        "delays that lock-free workers measured.",
    ),
    "theory-trajectories": Row(
        lambda _: theory.trajectories(),
        "Delayed gradient descent on a quadratic at one step size: the delay alone makes it "
        "diverge.",
    ),
    "theory-regression": Row(
        lambda material: theory.regression(material.theory),
        "Final loss over step size and delay on a regression with real data, run on the reference "
        "engine, under the bound of the paper's lemma.",
    ),
    "theory-discrepancy": Row(
        lambda material: theory.discrepancy(material.theory_if_there),
        "T2 where the discrepancy has either sign: it widens the range of stable step sizes where "
        "the discrepancy destabilises, and narrows it where it does not.",
    ),
}
