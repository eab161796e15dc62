"""What the figures show of made records: the numbers of the evidence, where a reader looks."""

from __future__ import annotations

import pytest

from paper_figures import style
from paper_figures.claim1 import claim1
from paper_figures.claim2 import claim2
from paper_figures.claim3 import claim3
from paper_figures.claim4 import claim4
from paper_figures.claim5 import claim5
from paper_figures.claims import claims_table
from paper_figures.curves import curves
from paper_figures.delays import delays, formula
from paper_figures.timeline import timeline, traces
from paper_figures.utilization import utilization
from reproduce.claims import evidence

from . import figure_cases as cases
from .figure_cases import R50, R152, panel, points, words


def colour(method: str) -> str:
    return style.look(method).colour


def marker(method: str) -> str:
    return style.look(method).marker


def test_gaps_and_times_of_c1() -> None:
    material = cases.full()
    figure = claim1(material)
    gaps = panel(figure, f"{R50}: accuracy lost")
    names = [label.get_text() for label in gaps.get_yticklabels()]
    assert names == ["T1+T2", "T1", "no technique", "PipeDream"]
    assert points(gaps, marker("t1")) == [pytest.approx((2.0, names.index("T1")))]
    assert points(gaps, marker("pipedream")) == [pytest.approx((1.0, names.index("PipeDream")))]
    assert "no technique diverges (3 of 3)" in words(figure)
    bold = [t.get_text() for t in gaps.get_yticklabels() if t.get_fontweight() == "bold"]
    assert bold == ["T1+T2"]
    times = evidence.time_to_target(material.records)
    row = times[(times["network"] == R50) & (times["method"] == "t1")].iloc[0]
    reached = figure.axes[1]
    assert reached.get_title(loc="left") == "time to 90% accuracy (GPipe: 600 steps)"
    drawn = points(reached, marker("t1"), colour("t1"))
    assert (row["speedup_stages"], names.index("T1")) in [pytest.approx(p) for p in drawn]
    assert f"{row['speedup_stages']:.1f}×" in words(figure)
    assert "reached in 0 of 3 runs" in words(figure)


def test_c1_leaves_hogwild_to_c2() -> None:
    assert "Hogwild!" not in words(claim1(cases.full()))


def test_pairs_of_c2() -> None:
    figure = claim2(cases.full())
    axes = panel(figure, R50)
    (with_t1,) = points(axes, marker("hogwild+t1"))
    (without,) = points(axes, marker("hogwild"))
    assert (without[0], with_t1[0]) == pytest.approx((92.5, 96.0))
    assert [t.get_text() for t in axes.get_yticklabels()] == ["pipeline", "Hogwild!, drawn delays"]
    assert "no technique diverges (3 of 3)" in words(figure)


def test_who_diverges_in_c3() -> None:
    figure = claim3(cases.full())
    where = panel(figure, "who diverges")
    assert [t.get_text() for t in where.get_xticklabels()] == ["10", "150"]
    assert [t.get_text() for t in where.get_yticklabels()] == ["lr 0.005"]
    ((x, _),) = points(where, "x")
    assert round(x) == 1  # at 150 stages
    assert len(points(where, marker("t1"), colour("t1"))) == 1
    assert len(points(where, marker("t1+t2"))) == 2
    ratios = panel(figure, "T2's error")
    assert (4.0, 0.2) in points(ratios, ".") and (3.0, 0.4) in points(ratios, ".")
    losses = panel(figure, f"{R152}, P = 150")
    assert [x for x, _ in points(losses, "x")] == [90.0]


def test_frontier_of_c4() -> None:
    material = cases.full()
    figure = claim4(material)
    axes = panel(figure, R50)
    assert "sgd with momentum 0.9" in axes.get_title(loc="left")
    held = evidence.memory(material.records)
    total = held[(held["network"] == R50) & (held["method"] == "pipedream")]["total"].iloc[0]
    assert points(axes, marker("pipedream")) == [pytest.approx((total / 1e6, 95.5))]
    assert points(axes, "x") == [], "where every run diverged, no memory was measured to the end"
    assert f"diverged: {R50}/async (3 of 3)" in words(figure)
    over = held[(held["network"] == R50) & (held["method"] == "t1+t2")]["pipedream_over"].iloc[0]
    assert f"{R50} {over:.2f}" in words(figure)


def test_a_row_that_lost_a_seed_is_a_cross_in_c4() -> None:
    rows = cases.grid()
    lost = next(row for row in rows if (row["method"], row["seed"]) == ("t1", 2))
    lost |= {"status": "diverged", "final": None, "diverged_at": 9, "steps": 10}
    axes = panel(claim4(cases.material(rows)), R50)
    assert [x for x, _ in points(axes, "x")] == [pytest.approx(3.0)]


def test_rows_of_other_settings_are_not_drawn_as_gaps() -> None:
    rows = cases.grid()
    for row in rows:
        if (row["network"], row["method"]) == (R50, "t1"):
            row["set_lr"] = 0.5
    material = cases.material(rows)
    figure = claim1(material)
    assert points(panel(figure, f"{R50}: accuracy lost"), marker("t1")) == []
    assert "of other settings" in words(figure)
    for drawn in (figure, claim4(material), curves(material)):
        assert f"rows of {R50} cannot be compared, they differ in lr = 0.01 and 0.5" in words(drawn)


def test_c3_says_how_long_its_runs_are_and_what_they_learnt() -> None:
    """Runs of 60 steps that end at chance are not called trained."""
    rows = [row | {"steps": 60} for row in cases.sweeps()]
    for row in rows:
        row["final"] = None if row["status"] == "diverged" else 11.0
    said = words(claim3(cases.material([*cases.grid(), *rows])))
    assert "filled: does not diverge in 60 steps" in said
    assert "Of the 3 runs that do not, none had learnt the task at the end" in said
    assert "trained" not in said


def test_c5_draws_a_series_a_method() -> None:
    rows = cases.sweeps()
    gpipe = [
        row | {"method": "gpipe", "mlflow_run_id": f"g{j}", "memory_activations_peak": 10**6}
        for j, row in enumerate(rows)
        if row["variant"].startswith("activations") and not row["set_segment"]
    ]
    said = words(claim5(cases.material([*rows, *gpipe])))
    assert "T1, batch 128, N = 16, kept: 2.00" in said
    assert "GPipe, batch 128, N = 16, kept: 0.00" in said or "kept: -0.00" in said


def test_c5_says_how_many_depths_a_fit_lacks() -> None:
    """Many depths with several layers a stage are not `fewer than 3 depths`."""
    rows = [row | {"units": 500} for row in cases.sweeps()]
    assert "kept: no fit (0 of 3 depths)" in words(claim5(cases.material(rows)))


def test_exponents_and_throughput_of_c5() -> None:
    figure = claim5(cases.full())
    assert "kept: 2.00 [2.00, 2.00]" in words(figure)
    assert "recomputed: 1.50 [1.50, 1.50]" in words(figure)
    pace = next(axes for axes in figure.axes if axes.get_ylabel() == "samples a second")
    assert points(pace, marker("t1")) == [(p, pytest.approx(128.0)) for p in (14, 54, 107)]


def test_learning_curves() -> None:
    figure = curves(cases.full())
    metric = panel(figure, f"{R50}: accuracy")
    (mean,) = [
        line
        for line in metric.lines
        if line.get_color() == colour("t1") and line.get_marker() == marker("t1")
    ]
    assert list(mean.get_ydata()) == pytest.approx([84.5, 94.5])
    assert len(points(metric, "x", colour("async"))) == 3
    loss = panel(figure, f"{R50}: training loss")
    assert [x for x, _ in points(loss, "x", colour("async"))] == [30.0, 31.0, 32.0]
    assert {y for _, y in points(loss, "x", colour("async"))} == {99.0}
    assert f"diverged: {R50}/async (3 of 3), {R152}/t1" in words(figure)


def test_timeline_and_its_export() -> None:
    material = cases.full()
    figure = timeline(material)
    said = words(figure)
    assert "GPipe, P = 2, N = 2: 2 updates here" in said and "T1, P = 2, N = 2" in said
    assert "forward" in said and "update" in said and "wait |" not in said
    upper, lower = figure.axes
    assert upper.get_xlim() == lower.get_xlim()
    assert upper.get_xlim()[1] == pytest.approx(2 * (8 * 10 + 2), rel=0.01)  # ms
    exported = traces(material)
    assert set(exported) == {"gpipe", "t1"}
    boxes = [event for event in exported["t1"]["traceEvents"] if event["ph"] == "X"]
    assert len(boxes) == len(cases.events())
    assert boxes[0]["dur"] == pytest.approx(10_000)  # microseconds


def test_counted_delays_lie_on_the_formula() -> None:
    material = cases.full()
    figure = delays(material)
    axes = panel(figure, f"{R50}: P = 107, N = 8")
    # pipedream, t1 and t1+t2, and gpipe on its own line of zeros
    assert f"{R50} 0 (all 107 stages, 4 methods)" in words(figure)
    run = material.records.runs_of(network=R50, method="t1").iloc[0]
    line = formula(run)
    assert line is not None and line[1] == (2 * 106 + 1) / 8 and line[107] == 1 / 8
    assert all(y == line[round(x)] for x, y in points(axes, marker("t1")) if y)
    histogram = panel(figure, "lock-free workers")
    assert "lock-free: mean 1.8" in words(figure)
    heights = histogram.patches[0].get_data().values
    assert list(heights) == pytest.approx([0.0, 0.25, 0.75])


def test_a_count_off_the_formula_is_told() -> None:
    rows = cases.grid([0])
    for row in rows:
        if row["method"] == "t1+t2" and row["network"] == R50:
            row["stages"][3]["tau_fwd"] += 0.5
    assert f"{R50} 0.5 (all 107 stages" in words(delays(cases.material(rows)))


def test_utilization_marks_the_networks() -> None:
    figure = utilization(cases.table())
    busy, gain = figure.axes
    said = words(figure)
    assert f"{R50}: {(16 + 106) / 16:.1f}×" in said and f"{R152}: {(16 + 149) / 16:.1f}×" in said
    assert points(busy, "o")[0] == pytest.approx((16, 16 / 122))
    assert "≥ 80% busy" in said and "≤ 1.25× to gain" in said
    assert len(gain.lines) == len(busy.lines)


def test_claims_as_a_figure() -> None:
    material = cases.full()
    said = words(claims_table(material))
    for claim in material.claims:
        assert f"{claim.id} {claim.statement}" in said
        assert str(claim.verdict) in said
    assert f"{R152}: 150 stages, t1 and t1+t2" in said
