"""The figures of the theory, and the record they are drawn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest
from matplotlib.collections import QuadMesh
from typer.testing import CliRunner, Result

from paper_figures import theory as figures
from reproduce import theory_sweep
from reproduce.__main__ import app
from reproduce.theory import DECAY, DelayedQuadratic, stability_bound
from reproduce.theory_sweep import Sweep, run_theory

SMALL = Sweep(steps=120, taus=(0, 2), alphas=(0.02, 0.1, 0.6), discrepancies=(2.5,), tolerance=0.1)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> pandas.DataFrame:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPRODUCE_RESULTS", str(tmp_path_factory.mktemp("results")))
        return pandas.read_csv(run_theory(sweep=SMALL))


def test_the_record_is_tidy_and_right(small: pandas.DataFrame) -> None:
    runs = small[small["kind"] == "regression"]
    assert len(runs) == 6
    bound = stability_bound(runs["tau"], runs["curvature"].iloc[0])
    assert (runs["diverged"] == (runs["alpha"] > bound)).all()
    assert runs["diverged"].any() and not runs["diverged"].all()
    assert (runs.loc[~runs["diverged"], "final_loss"] > runs["optimum"].iloc[0]).all()
    engine = small[small["kind"] == "discrepancy"]
    for corrected, decay in ((False, None), (True, DECAY)):
        series = engine[engine["corrected"] == corrected]
        low = series.loc[~series["diverged"], "alpha"].max()
        high = series.loc[series["diverged"], "alpha"].min()
        curve = DelayedQuadratic(10, 0, 2.5, decay).largest_stable_alpha()
        assert low * 0.95 < curve < high * 1.05 and high / low <= 1.1
    assert engine.loc[engine["corrected"], "decay"].eq(DECAY).all()
    assert engine.loc[~engine["corrected"], "decay"].isna().all()


def theory(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["theory", *arguments])


def test_the_command_keeps_what_was_made_with_the_same_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Sweep] = []

    def rows(sweep: Sweep) -> list[dict[str, object]]:
        made.append(sweep)
        return [{"kind": "regression", "parameters": sweep.digest}]

    monkeypatch.setattr(theory_sweep, "run", rows)
    monkeypatch.setenv("REPRODUCE_RESULTS", str(tmp_path / "new" / "results"))
    path = tmp_path / "new" / "results" / "theory.csv"
    assert str(path) in theory().stdout and len(made) == 1
    kept = theory()
    assert kept.exit_code == 0 and "kept; --force" in kept.stdout and len(made) == 1
    theory("--force")
    assert len(made) == 2
    path.write_text(path.read_text().replace(made[0].digest, Sweep(steps=7).digest))
    theory()
    assert len(made) == 3
    path.write_bytes(b"\xff\x00 not a table")
    theory()
    assert len(made) == 4 and [file.name for file in path.parent.iterdir()] == ["theory.csv"]


def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(theory_sweep, "run", lambda sweep: pytest.fail("worked first"))
    monkeypatch.setenv("REPRODUCE_RESULTS", str(tmp_path / "file"))
    told = theory()
    assert told.exit_code == 2 and "REPRODUCE_RESULTS" in told.stderr
    assert told.stderr.count("\n") == 1


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(sweep: Sweep) -> list[dict[str, object]]:
        raise KeyboardInterrupt

    monkeypatch.setattr(theory_sweep, "run", fail)
    monkeypatch.setenv("REPRODUCE_RESULTS", str(tmp_path))
    (tmp_path / "theory.csv").write_text("kind,parameters\nold,old\n")
    with pytest.raises(KeyboardInterrupt):
        run_theory()
    assert (tmp_path / "theory.csv").read_text() == "kind,parameters\nold,old\n"
    assert len(list(tmp_path.iterdir())) == 1


def test_digests_tell_parameters_apart() -> None:
    assert Sweep().digest == Sweep().digest != Sweep(steps=301).digest


def test_trajectories_show_what_converges_and_what_does_not() -> None:
    (axes,) = figures.trajectories().axes
    curves = {line.get_label(): line.get_ydata() for line in axes.get_lines()[:3]}
    assert list(curves) == ["τ = 0", "τ = 5", "τ = 10, diverges"]
    assert abs(curves["τ = 0"][-1]) < 1e-7 and abs(curves["τ = 5"][-1]) < 0.1
    assert np.abs(curves["τ = 10, diverges"][-40:]).max() > 1.5


def test_regression_draws_the_record_and_the_bound(small: pandas.DataFrame) -> None:
    axes = figures.regression(small).axes[0]
    (mesh,) = [each for each in axes.collections if isinstance(each, QuadMesh)]
    shown = np.ma.getmaskarray(mesh.get_array()).reshape(3, 2)
    runs = small[small["kind"] == "regression"]
    assert (shown == runs.pivot(index="alpha", columns="tau", values="diverged")).all(axis=None)
    column, bound = axes.get_lines()[0].get_data()
    curvature = runs["curvature"].iloc[0]
    assert (column[0], bound[0]) == (0, pytest.approx(2 / curvature))
    assert (column[-1], bound[-1]) == (1, pytest.approx(stability_bound(2, curvature)))


def test_regression_without_runs_says_what_makes_them(small: pandas.DataFrame) -> None:
    (axes,) = figures.regression(small[small["kind"] == "discrepancy"]).axes
    assert "reproduce theory" in axes.texts[0].get_text().replace("\n", " ")


def test_discrepancy_draws_both_signs_and_the_engine(small: pandas.DataFrame) -> None:
    a, b, c, d = figures.discrepancy(small).axes
    for axes, delta in ((a, 5.0), (b, -5.0)):
        alpha, radius = axes.get_lines()[2].get_data()
        expected = DelayedQuadratic(10, 6, delta, DECAY).spectral_radius(alpha)
        assert radius == pytest.approx(expected)
    deltas, without = c.get_lines()[1].get_data()
    with_t2 = c.get_lines()[2].get_ydata()
    assert with_t2[np.isclose(deltas, 5)] > without[np.isclose(deltas, 5)]
    assert with_t2[np.isclose(deltas, -5)] < without[np.isclose(deltas, -5)]
    points = {line.get_label(): line for line in d.get_lines() if "engine" in line.get_label()}
    assert len(points) == 2
    for line in points.values():
        assert line.get_xdata() == [2.5] and len(line.get_ydata()) == 1
    assert not any("engine" in line.get_label() for line in figures.discrepancy().axes[3].lines)
