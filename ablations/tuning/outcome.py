"""What came of a study: its trials as records, the best at fresh seeds, and a row to paste."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock
from optuna import Study
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState
from pandas import DataFrame

from ablations.tuning import rows
from ablations.tuning.parent import Parent
from ablations.tuning.spaces import Space, rounded
from ablations.tuning.study import finished
from reproduce.cells import Cell, override
from reproduce.execute import execute
from reproduce.progress import clock, make_progress
from reproduce.provenance import SOURCE
from reproduce.results import row as record_of
from reproduce.statistics import Interval, mean_interval
from reproduce.store import Store
from reproduce.tracking import results_folder
from reproduce.train import prepare

COLUMNS = ["trial", "state", "value", "step", "diverged_at", "seconds", "mlflow_run_id"]


@dataclass(frozen=True)
class Candidate:
    """Settings that were run again at fresh seeds."""

    label: str
    """`trial 17`, or `own`"""
    values: dict[str, Any]
    found: float | None
    """The metric in the study; None: not tried there, or it did not get to its end"""
    finals: list[float]
    """The metric of the fresh runs that reached their last step"""
    runs: int

    @property
    def interval(self) -> Interval | None:
        return mean_interval(self.finals) if self.finals else None

    @property
    def rank(self) -> tuple[float, ...]:
        """Higher is better: no divergence first, then the mean; the study's value without runs."""
        if not self.runs:
            return (self.found if self.found is not None else -1.0,)
        return (len(self.finals) / self.runs, sum(self.finals) / (len(self.finals) or 1))


def frame(study: Study, space: Space) -> DataFrame:
    """The study's trials that ended, one row each, by number.

    Columns: trial, state (complete, diverged, pruned or failed), value (the metric; of a pruned
    trial the last that was scored, after so many steps: `step`), diverged_at, seconds,
    mlflow_run_id, and the settings.
    """
    found = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state in (TrialState.WAITING, TrialState.RUNNING):
            continue
        diverged = trial.user_attrs.get("status") == "diverged"
        last = trial.last_step if trial.state == TrialState.PRUNED else None
        found.append(
            {
                "trial": trial.number,
                "state": "diverged" if diverged else _STATES[trial.state],
                "value": trial.intermediate_values[last] if last is not None else trial.value,
                "step": last,
                "diverged_at": trial.user_attrs.get("diverged_at"),
                "seconds": trial.duration.total_seconds() if trial.duration else None,
                "mlflow_run_id": trial.user_attrs.get("mlflow_run_id"),
                **rounded({key: trial.params.get(key) for key in space.distributions}),
            }
        )
    return DataFrame(found, columns=[*COLUMNS, *space.distributions])


_STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


def best_trials(study: Study, count: int) -> list[FrozenTrial]:
    """The best trials that reached their last step, with settings all different, best first."""
    complete = [
        trial
        for trial in finished(study)
        if trial.state == TrialState.COMPLETE and trial.user_attrs.get("status") == "finished"
    ]
    found: list[FrozenTrial] = []
    for trial in sorted(complete, key=lambda t: t.value or 0.0, reverse=True):
        if len(found) < count and rounded(trial.params) not in [rounded(t.params) for t in found]:
            found.append(trial)
    return found


def importances(study: Study) -> dict[str, float]:
    """Share of each setting in the variance of the values (fANOVA); empty where none is known."""
    try:
        return get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    except (ValueError, RuntimeError):  # fewer than two values, or all the same
        return {}


def again(
    cell: Cell, label: str, values: dict[str, Any], seeds: int, store: Store, parent: str
) -> list[dict[str, Any]]:
    """Records of the cell with these settings at fresh seeds; runs those that are not there yet."""
    cells = [
        replace(
            override(cell, values | {"seed": cell.settings.seed + 1 + j}),
            variant=f"tune:{label.replace(' ', '=')}",
            seeds=1,
        )
        for j in range(seeds)
    ]
    done = store.finished()
    todo = [c for c in cells if c.config_hash not in done]
    tags = {"mlflow.parentRunId": parent, "again": label}
    with make_progress(todo) as progress:
        for c in todo:
            _, end = execute(c, prepare(c), store, progress, tags)
            if end == "killed":
                raise KeyboardInterrupt
    done = store.finished()
    return [record_of(done[c.config_hash]) for c in cells if c.config_hash in done]


def candidates(
    cell: Cell, space: Space, study: Study, store: Store, parent: str, best: int, seeds: int
) -> list[Candidate]:
    """The cell's own settings, then the best trials, each with what came of it at fresh seeds."""
    tried = {
        str(sorted(rounded(trial.params).items())): trial.value
        for trial in best_trials(study, len(study.trials))
    }
    own = {key: getattr(cell.settings, key) for key in space.distributions}
    chosen = [("own", own, tried.get(str(sorted(own.items()))))]
    chosen += [
        (f"trial {trial.number}", rounded(trial.params), trial.value)
        for trial in best_trials(study, best or 1)
        if rounded(trial.params) != own
    ]
    found = []
    for label, values, value in chosen:
        runs = again(cell, label, values, seeds, store, parent) if best else []
        finals = [float(run["final"]) for run in runs if run["status"] == "finished"]
        found.append(Candidate(label, values, value, finals, len(runs)))
    return found


def conclude(
    cell: Cell,
    space: Space,
    study: Study,
    store: Store,
    parent: Parent,
    best: int,
    seeds: int,
    write: str | None,
    record: bool,
) -> None:
    """Print the outcome, keep it in the results folder and with the study's run, draw its figures,
    and add the tuned row to a table.

    Args:
        best, seeds: so many of the best trials are run again, at so many fresh seeds each.
        write: the table; None: no table.
        record: copy the outcome into results/recorded as well.
    """
    folder = results_folder() / "tuning"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        found = frame(study, space)
        ranked = candidates(cell, space, study, store, parent.run_id, best, seeds)
        winner = max(ranked, key=lambda candidate: candidate.rank)
        share = importances(study)
        text, row = told(cell, study, found, ranked, winner, share)
        print(text)
        stem = slug(study.study_name)
        paths = [folder / f"{stem}.csv", folder / f"{stem}.md"]
        found.to_csv(paths[0], index=False)
        paths[1].write_text(text, encoding="utf-8")
        paths += _draw(stem, found, share, space, cell)
        for path in paths:
            print(path)
        numbers = {"trials": float(len(found))}
        if winner.found is not None:
            numbers["best"] = winner.found
        parent.tell(numbers, {path.name: path.read_text("utf-8") for path in paths[:2]})
        if record:
            _record(paths)
        if write is not None and winner.label == "own":
            print(f"{write}: left as it is; no trial was better than the cell's own settings")
        elif write is not None:
            rows.add(write, cell.name, row)
            print(f"{write}: the tuned row is added")


def slug(name: str) -> str:
    """A name as a file's."""
    return re.sub(r"[^\w.+@=,-]+", "-", name)


def _draw(
    stem: str, found: DataFrame, share: Mapping[str, float], space: Space, cell: Cell
) -> list[Path]:
    from paper_figures import tuning

    logarithmic = {key for key, d in space.distributions.items() if getattr(d, "log", False)}
    metric = prepare(cell).task().metric
    return tuning.draw(stem, found, share, list(space.distributions), logarithmic, metric)


def _record(paths: list[Path]) -> None:
    folder = SOURCE / "results" / "recorded" / "tuning"
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        print(shutil.copy(path, folder))


def told(
    cell: Cell,
    study: Study,
    found: DataFrame,
    ranked: list[Candidate],
    winner: Candidate,
    share: Mapping[str, float],
) -> tuple[str, str]:
    """The outcome as Markdown, and the row to paste."""
    keys = list(winner.values)
    states = ", ".join(f"{n} {state}" for state, n in found["state"].value_counts().items())
    cost = clock(float(found["seconds"].sum()))
    lines = [
        f"# {study.study_name}",
        "",
        f"{len(found)} trials ({states}) in {cost} of running time.",
        "",
        _table(
            [
                {
                    "settings": candidate.label,
                    **{key: _short(candidate.values[key]) for key in keys},
                    "in the study": _short(candidate.found),
                    "at fresh seeds": _fresh(candidate),
                }
                for candidate in ranked
            ]
        ),
    ]
    if share:
        shares = ", ".join(f"{key} {value:.0%}" for key, value in share.items())
        lines += ["", f"Share of the variance (fANOVA): {shares}."]
    comment = (
        f"Tuned in study {study.study_name!r}: {winner.label} of {len(found)}; "
        f"{_fresh(winner)} against {_fresh(ranked[0])} of its own settings."
    )
    row = rows.row(cell.name, winner.values, comment)
    if winner.label == "own":
        lines += ["", "No trial was better than the cell's own settings."]
    else:
        lines += ["", "The row, to paste into a table:", "", "```toml", row.rstrip(), "```"]
    return "\n".join(lines) + "\n", row


def _fresh(candidate: Candidate) -> str:
    """`93.2 [91.0, 95.0] over 3 seeds`, with how many diverged."""
    if not candidate.runs:
        return f"{_short(candidate.found)} at one seed, not run again"
    diverged = candidate.runs - len(candidate.finals)
    end = f"{candidate.runs} seeds" + (f", {diverged} diverged" if diverged else "")
    return f"{candidate.interval.text()} over {end}" if candidate.interval else f"none over {end}"


def _short(value: Any) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(found: list[dict[str, str]]) -> str:
    head = list(found[0])
    body = ["| " + " | ".join(row[key] for key in head) + " |" for row in found]
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *body])
