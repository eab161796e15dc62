"""Records that lack something: figures say what, and none fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paper_figures.claim1 import claim1
from paper_figures.claim3 import claim3
from paper_figures.claim4 import claim4
from paper_figures.claim5 import claim5
from paper_figures.curves import curves
from paper_figures.figures import FIGURES
from paper_figures.material import Material, Missing

from ..made import run
from . import figure_cases as cases
from .figure_cases import R50, R152, words

OF_RECORDS = [name for name in FIGURES if not name.startswith(("theory", "schedule", "util"))]
OF_THE_GRID = ("claims", "c1", "c2", "c3", "c4", "curves", "delays")


def all_diverged() -> Material:
    rows = [run(row["network"], row["method"], row["seed"], diverged_at=9) for row in cases.grid()]
    return cases.material(rows)


def one_seed() -> Material:
    return cases.material([*cases.grid([0]), *cases.sweeps()])


def one_run() -> Material:
    return cases.material([run(R50, "t1", final=50.0)])


def other_names() -> Material:
    """A network and a method that nobody has heard of, without a target or a resolution."""
    told: dict[str, Any] = {"set_target": None, "resolution": None, "metric": "f1"}
    return cases.material([run("mine-net", m, **told) for m in ("gpipe", "averaged")])


def bare() -> Material:
    """Runs of an older table: no memory, no delays, no utilization."""
    empty = dict.fromkeys(
        ["memory_weights", "memory_optimizer", "memory_stash", "memory_discrepancy",
         "memory_activations_peak", "utilization_measured", "loop_s", "tau_fwd_max"]
    )  # fmt: skip
    return cases.material([run(R50, m, **empty) for m in ("gpipe", "t1", "t1+t2")])


@pytest.mark.parametrize("name", OF_RECORDS)
@pytest.mark.parametrize("made", [all_diverged, one_seed, one_run, other_names, bare])
def test_no_figure_fails(name: str, made: Callable[[], Material]) -> None:
    """It is drawn, to the end, or says in a line what it would need."""
    try:
        figure = FIGURES[name].draw(made())
    except Missing as missing:
        assert str(missing)
        return
    figure.draw_without_rendering()


def test_single_seeds_are_told() -> None:
    few = "1 seed a cell: nothing here tells how far apart seeds lie"
    assert few in words(curves(one_seed()))
    assert f"1 seed: {R152}/gpipe, {R152}/t1, {R152}/t1+t2" in words(curves(cases.full()))


def test_missing_cells_are_told() -> None:
    rows = [row for row in cases.grid() if (row["network"], row["method"]) != (R50, "t1")]
    rows = [row for row in rows if (row["method"], row["seed"]) != ("t1+t2", 2)]
    material = cases.material(rows)
    for draw in (claim1, claim4, curves):
        said = words(draw(material))
        assert f"missing: {R50}/t1" in said
        assert f"seeds missing: {R50}/t1+t2 (2 of 3)" in said


def test_parts_without_records_are_named_in_their_panels() -> None:
    said = words(claim3(cases.material(cases.grid())))
    assert "missing: the sweep depth" in said and "missing: the sweep approximation" in said
    cuts = [row for row in cases.sweeps() if row["variant"].startswith("cuts")]
    assert "missing: the sweep activations" in words(claim5(cases.material(cuts)))


def test_runs_that_never_were_scored() -> None:
    assert "no run was scored" in words(curves(all_diverged()))
    with pytest.raises(Missing, match="no run that reached its end"):
        claim4(all_diverged())


def test_rows_that_all_lost_a_run() -> None:
    rows = cases.grid()
    for row in rows:
        if row["seed"] == 2 or row["network"] == R152:
            row |= {"status": "diverged", "final": None, "diverged_at": 9, "steps": 10}
    assert "no row without a run that diverged" in words(claim4(cases.material(rows)))


@pytest.mark.parametrize("name", ["c5", "timeline", "c2"])
def test_nothing_to_draw_names_the_table(name: str) -> None:
    with pytest.raises(Missing, match="table made has no"):
        FIGURES[name].draw(one_run())


@pytest.mark.parametrize("name", OF_THE_GRID)
def test_a_table_of_sweeps_alone(name: str) -> None:
    material = cases.material(cases.sweeps())
    if name in ("claims", "c3"):
        FIGURES[name].draw(material)
    else:
        with pytest.raises(Missing, match="no finished run outside its sweeps"):
            FIGURES[name].draw(material)
