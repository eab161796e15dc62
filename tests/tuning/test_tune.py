"""A study: what is asked for is done once, whatever happens on the way, and told as it was."""

from __future__ import annotations

import csv
from pathlib import Path

import optuna
import pytest
from optuna import Trial
from optuna.trial import FrozenTrial, TrialState

from ablations.tuning.storage import connect, default_storage
from ablations.tuning.study import retry
from reproduce import provenance
from reproduce.tables import load

from ..harness.conftest import WORKER_DIED, runs
from .conftest import Engine

CELL = "digits-resnet50/t1+t2"
STUDY = f"small: {CELL}"
QUICK = ["--best", 0]
"""Without runs at fresh seeds"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "space.toml"
    path.write_text('["t1+t2"]\ndecay = { low = 0.01, high = 0.6 }\n')
    return path


def choices(tmp_path: Path, *values: float) -> Path:
    path = tmp_path / "choices.toml"
    path.write_text(f'["t1+t2"]\ndecay = {{ choices = {list(values)} }}\n')
    return path


def trials(results: Path) -> list[FrozenTrial]:
    return optuna.load_study(
        study_name=STUDY, storage=f"sqlite:///{results / 'tuning.db'}"
    ).get_trials()


def children(results: Path) -> list:
    return [r for r in runs(results, "small tuning") if "trial" in r.data.tags]


def test_a_trial_is_a_run_of_the_cell_under_the_studys_run(
    tune, table: Path, results: Path, engine: Engine, space: Path
) -> None:
    done = tune(CELL, "--table", table, "--trials", 4, "--space", space, *QUICK)
    assert done.exit_code == 0, done.output
    found = trials(results)
    assert [t.number for t in found] == [0, 1, 2, 3]
    assert found[0].params == {"decay": 0.1}  # the table's own setting comes first
    (parent,) = [r for r in runs(results, "small tuning") if "trial" not in r.data.tags]
    assert parent.info.status == "FINISHED"
    for run, trial, job in zip(children(results), found, engine.jobs, strict=True):
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.tags["trial"] == str(trial.number)
        assert run.info.run_id == trial.user_attrs["mlflow_run_id"]
        assert float(run.data.params["decay"]) == job.decay
        assert trial.value == run.data.metrics["final"]
    assert runs(results) == []  # the table's own records stay as they are


def test_the_same_command_does_nothing_and_a_larger_total_goes_on(
    tune, table: Path, results: Path, engine: Engine, space: Path
) -> None:
    command = [CELL, "--table", table, "--space", space, *QUICK]
    for total, expected in ((3, 3), (3, 3), (5, 5), (2, 5)):
        done = tune(*command, "--trials", total)
        assert done.exit_code == 0, done.output
        assert len(engine.jobs) == expected
    assert [t.number for t in trials(results)] == [0, 1, 2, 3, 4]


def test_a_diverged_trial_is_the_worst_and_the_study_goes_on(
    tune, table: Path, results: Path, engine: Engine, tmp_path: Path
) -> None:
    path = choices(tmp_path, 0.3, 0.9, 0.5)
    done = tune(CELL, "--table", table, "--space", path, "--sampler", "grid", *QUICK)
    assert done.exit_code == 0, done.output
    good, bad, fair = trials(results)
    # It did well before, and is not taken for good: neither it nor, by the median, what it scored.
    assert (bad.state, bad.value, bad.user_attrs["diverged_at"]) == (TrialState.PRUNED, 0.0, 4)
    assert bad.intermediate_values == {3: 99.0, 5: 0.0}
    assert good.value == pytest.approx(90.0) and fair.value == pytest.approx(70.0)
    row = list(csv.DictReader((results / "tuning" / "small-digits-resnet50-t1+t2.csv").open()))[1]
    assert (row["state"], row["diverged_at"], row["value"]) == ("diverged", "4.0", "")
    assert "trial 0" in done.output and "decay = 0.3" in done.output
    assert [r.data.tags["status"] for r in children(results)] == [
        "finished", "diverged", "finished",
    ]  # fmt: skip


def test_a_bad_trial_is_pruned_half_way(
    tune, table: Path, results: Path, engine: Engine, tmp_path: Path
) -> None:
    path = choices(tmp_path, 0.3, 0.31, 0.29, 0.32, 0.05)
    done = tune(CELL, "--table", table, "--space", path, "--sampler", "grid", *QUICK)
    assert done.exit_code == 0, done.output
    *others, last = trials(results)
    assert {t.state for t in others} == {TrialState.COMPLETE}
    assert last.state == TrialState.PRUNED
    assert last.intermediate_values == {3: pytest.approx(65.0)}
    run = children(results)[-1]
    assert (run.info.status, run.data.tags["status"]) == ("KILLED", "pruned")
    assert "4 complete, 1 pruned" in done.output
    none = tune(CELL, "--table", table, "--space", path, "--sampler", "grid", "--pruner", "none",
                "--study", "b", *QUICK)  # fmt: skip
    assert "5 complete" in none.output


def test_a_grid_tries_each_point_once(
    tune, table: Path, results: Path, engine: Engine, tmp_path: Path
) -> None:
    path = choices(tmp_path, 0.2, 0.3, 0.4)
    command = [CELL, "--table", table, "--space", path, "--sampler", "grid", *QUICK]
    assert tune(*command, "--trials", 2).exit_code == 0
    assert tune(*command).exit_code == 0
    assert tune(*command, "--trials", 9).exit_code == 0
    assert [job.decay for job in engine.jobs] == [0.2, 0.3, 0.4]


def test_after_an_interrupt_the_total_is_kept_and_nothing_runs_twice(
    tune, table: Path, results: Path, engine: Engine, space: Path
) -> None:
    engine.failures = {2: KeyboardInterrupt()}
    command = [CELL, "--table", table, "--trials", 5, "--space", space, *QUICK]
    assert tune(*command).exit_code == 130
    assert {r.info.status for r in runs(results, "small tuning")} == {"FINISHED", "KILLED"}
    done = tune(*command)
    assert done.exit_code == 0, done.output
    found = trials(results)
    assert [t.number for t in found] == list(range(6))
    assert [t.state for t in found].count(TrialState.FAIL) == 1
    assert sum(t.state in (TrialState.COMPLETE, TrialState.PRUNED) for t in found) == 5
    again = found[5]
    assert again.params == found[2].params
    assert {r.info.status for r in runs(results, "small tuning")} == {"FINISHED", "KILLED"}


def test_a_failed_run_is_tried_once_more(
    tune, table: Path, results: Path, engine: Engine, space: Path
) -> None:
    engine.failures = {1: WORKER_DIED}
    command = [CELL, "--table", table, "--trials", 3, "--space", space, *QUICK]
    done = tune(*command)
    assert done.exit_code == 1
    assert str(WORKER_DIED) in done.output
    states = [t.state for t in trials(results)]
    assert states == [TrialState.COMPLETE, TrialState.FAIL, *[TrialState.COMPLETE] * 2]
    assert trials(results)[3].params == trials(results)[1].params
    assert tune(*command).exit_code == 0
    assert len(engine.jobs) == 4


def test_a_trial_that_others_gave_up_is_left_to_them(
    tune, table: Path, results: Path, engine: Engine, space: Path
) -> None:
    """A machine that sleeps gives no sign of life, and goes on as if nothing had been."""

    def give_up() -> None:
        study = optuna.load_study(study_name=STUDY, storage=connect(default_storage()))
        (trial,) = study.get_trials(states=(TrialState.RUNNING,))
        study.tell(trial.number, state=TrialState.FAIL)
        retry(study, study.get_trials()[trial.number])

    engine.meanwhile = {1: give_up}
    done = tune(CELL, "--table", table, "--trials", 3, "--space", space, *QUICK)
    assert done.exit_code == 0, done.output
    states = [t.state for t in trials(results)]
    assert states == [TrialState.COMPLETE, TrialState.FAIL, *[TrialState.COMPLETE] * 2]


def test_a_results_folder_that_cannot_be_written_is_refused(
    tune, table: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRODUCE_RESULTS", str(table / "below-a-file"))
    done = tune(CELL, "--table", table)
    assert done.exit_code == 2 and "REPRODUCE_RESULTS" in done.output and not engine.jobs


def test_a_changed_space_or_cell_is_refused_with_the_difference(
    tune, table: Path, results: Path, engine: Engine, space: Path
) -> None:
    command = [CELL, "--table", table, "--trials", 1, "--space", space, *QUICK]
    assert tune(*command).exit_code == 0
    space.write_text(space.read_text().replace("0.6", "0.5"))
    done = tune(*command)
    assert done.exit_code == 2
    assert "its space has changed: decay was 0.01 to 0.6, is 0.01 to 0.5" in done.output
    assert "--study NAME" in done.output
    assert tune(*command, "--study", "another").exit_code == 0
    space.write_text(space.read_text().replace("0.5", "0.6"))
    table.write_text(table.read_text().replace("steps = 6", "steps = 9"))
    done = tune(*command)
    assert done.exit_code == 2
    assert "its cell has changed: steps was 6, is 9" in done.output
    assert len(engine.jobs) == 2


def test_a_lucky_trial_is_found_out_at_fresh_seeds(
    tune, table: Path, results: Path, engine: Engine, space: Path
) -> None:
    command = [CELL, "--table", table, "--trials", 4, "--space", space, "--best", 2, "--seeds", 2]
    done = tune(*command)
    assert done.exit_code == 0, done.output
    again = [r for r in runs(results, "small tuning") if "again" in r.data.tags]
    assert {r.data.tags["again"].split()[0] for r in again} == {"own", "trial"}
    assert [int(r.data.params["seed"]) for r in again] == [1, 2] * (len(again) // 2)
    assert "over 2 seeds" in done.output
    count = len(engine.jobs)
    assert tune(*command).exit_code == 0
    assert len(engine.jobs) == count  # they are there already


def test_a_trial_whose_fresh_runs_fail_does_not_win(
    tune, table: Path, results: Path, engine: Engine, tmp_path: Path
) -> None:
    path = choices(tmp_path, 0.1, 0.3)
    engine.failures = {4: WORKER_DIED, 5: WORKER_DIED}  # two trials, two runs of its own settings
    done = tune(CELL, "--table", table, "--space", path, "--sampler", "grid", "--seeds", 2)
    assert done.exit_code == 1
    assert "none over 0 seeds, 2 failed" in done.output
    assert "The cell's own settings are the best of these." in done.output


def test_values_given_are_used_as_they_are_and_sampled_ones_can_be_written_down(
    tune, table: Path, results: Path, engine: Engine, space: Path
) -> None:
    table.write_text(table.read_text().replace("decay = 0.1", "decay = 0.123456"))
    tune(CELL, "--table", table, "--trials", 4, "--space", space, *QUICK)
    own, *others = [job.decay for job in engine.jobs]
    assert own == 0.123456
    assert all(float(f"{decay:.4g}") == decay for decay in others)
    assert len(set(others)) == 3


def test_a_value_that_the_cell_cannot_take_fails_its_trial_alone(
    tune, table: Path, results: Path, engine: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "batch.toml"
    path.write_text('["t1+t2"]\nbatch_size = { low = 32, high = 36, points = 3 }\n')
    done = tune(CELL, "--table", table, "--space", path, "--sampler", "grid", *QUICK)
    assert done.exit_code == 1
    assert "batch_size = 34" in done.output or "does not divide batch_size = 34" in done.output
    states = [t.state for t in trials(results)]
    assert states == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]


def test_words_can_be_searched_and_drawn(
    tune, table: Path, results: Path, engine: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "words.toml"
    path.write_text(
        '["t1+t2"]\ndecay = { choices = [0.2, 0.3] }\n'
        'lr_schedule = { choices = ["constant", "cosine"] }\n'
    )
    done = tune(CELL, "--table", table, "--space", path, "--sampler", "grid", *QUICK)
    assert done.exit_code == 0, done.output
    assert 'lr_schedule = "co' in done.output
    assert any(p.name.endswith("slices.png") for p in (results / "figures").iterdir())


def test_a_password_is_told_nobody(
    tune, table: Path, results: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://me:secret@nowhere.invalid/studies"
    done = tune(CELL, "--table", table, "--storage", url)
    assert done.exit_code == 2 and "secret" not in done.output
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "ablations", "tune", "--storage", url])
    assert provenance.command().endswith("postgresql://me:***@nowhere.invalid/studies")


def test_the_tuned_row_is_added_to_a_table(
    tune, table: Path, results: Path, engine: Engine, tmp_path: Path
) -> None:
    before = f"# mine\n{table.read_text()}"
    table.write_text(before)
    path = choices(tmp_path, 0.1, 0.3)
    command = [CELL, "--table", table, "--space", path, "--sampler", "grid", "--write", table]
    done = tune(*command, "--seeds", 1)
    assert done.exit_code == 0, done.output
    text = table.read_text()
    assert text.startswith(before.rstrip()) and "# Tuned in study" in text
    assert load(str(table)).cell(CELL).settings.decay == 0.3
    refused = tune(*command)
    assert refused.exit_code == 2 and "is there already" in refused.output


@pytest.mark.parametrize(
    ("target", "words"),
    [("none.toml", "no table there"), ("space.toml", "unknown section"), ("other.toml", "no cell")],
)
def test_a_table_that_cannot_take_the_row_is_refused_first(
    tune, table, results, engine: Engine, space: Path, tmp_path: Path, target: str, words: str
) -> None:
    (tmp_path / "other.toml").write_text(table.read_text().replace('"t1+t2"', '"async"'))
    done = tune(CELL, "--table", table, "--space", space, "--write", tmp_path / target)
    assert done.exit_code == 2 and words in done.output
    assert not engine.jobs


def test_a_study_on_a_journal_file(
    tune, table: Path, results: Path, engine: Engine, space: Path, tmp_path: Path
) -> None:
    command = [CELL, "--table", table, "--space", space, "--storage", tmp_path / "j.log", *QUICK]
    assert tune(*command, "--trials", 2).exit_code == 0
    assert tune(*command, "--trials", 3).exit_code == 0
    assert len(engine.jobs) == 3
    assert not (results / "tuning.db").exists()


def test_a_storage_that_is_not_there_is_refused(
    tune, table: Path, results: Path, engine: Engine
) -> None:
    done = tune(CELL, "--table", table, "--storage", "sqlite:////nowhere/at/all.db")
    assert done.exit_code == 2 and done.output.count("\n") == 1
    assert "--storage" in done.output and not engine.jobs


def test_the_figures_are_drawn(
    tune, table: Path, results: Path, engine: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "two.toml"
    path.write_text(
        '["t1+t2"]\ndecay = { low = 0.1, high = 0.5 }\n'
        "lr = { low = 0.001, high = 0.1, log = true }\n"
    )
    whole = ["--sampler", "grid", "--pruner", "none"]  # what a sampler finds is left to chance
    done = tune(CELL, "--table", table, "--space", path, *whole, *QUICK)
    assert done.exit_code == 0, done.output
    names = {p.name for p in (results / "figures").iterdir()}
    stem = "tuning-small-digits-resnet50-t1+t2"
    assert names == {
        f"{stem}-{what}.{ending}"
        for what in ("importance", "slices", "contours")
        for ending in ("png", "pdf")
    }


def test_a_trial_cut_off_before_it_began_is_tried_with_what_it_was_asked_for(
    tune, table: Path, results: Path, engine: Engine, space: Path
) -> None:
    """Its process took it and died at once, with no word of who it was."""
    command = [CELL, "--table", table, "--space", space, *QUICK]
    engine.failures = {0: KeyboardInterrupt()}
    assert tune(*command, "--trials", 2).exit_code == 130
    study = optuna.load_study(study_name=STUDY, storage=connect(default_storage()))
    with pytest.raises(RuntimeError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trial, "set_user_attr", lambda *_: (_ for _ in ()).throw(RuntimeError()))
        study.optimize(lambda trial: trial.set_user_attr("process", ""), n_trials=1)
    cut = study.get_trials()[1]
    assert (cut.state, cut.params) == (TrialState.FAIL, {})
    retry(study, cut)
    done = tune(*command, "--trials", 2)
    assert done.exit_code == 0, done.output
    assert "2 cut off" in done.output
    found = trials(results)
    again = next(t for t in found if t.user_attrs.get("again") == 1)
    assert all(job.decay == 0.1 for job in engine.jobs[:2])
    assert sum(t.state == TrialState.COMPLETE for t in found) >= 2
    assert again.state == TrialState.COMPLETE
