"""The best trials and the cell's own settings again at fresh seeds: a lucky trial is found out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from optuna import Study

from ablations.tuning.spaces import Space
from ablations.tuning.trials import best_trials
from reproduce.cells import Cell, override
from reproduce.execute import execute
from reproduce.progress import make_progress
from reproduce.results import row as record_of
from reproduce.statistics import Interval, mean_interval
from reproduce.store import Store
from reproduce.train import prepare


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
    """How many were asked for; 0: the study's own value is all that is known"""
    diverged: int = 0

    @property
    def interval(self) -> Interval | None:
        return mean_interval(self.finals) if self.finals else None

    @property
    def rank(self) -> tuple[float, ...]:
        """Higher is better: no divergence first, then the mean; the study's value without runs."""
        if not self.runs:
            return (1.0, self.found if self.found is not None else -1.0)
        return (len(self.finals) / self.runs, sum(self.finals) / (len(self.finals) or 1))


def again(
    cell: Cell, label: str, values: dict[str, Any], seeds: int, store: Store, parent: str
) -> list[dict[str, Any]]:
    """Records of the cell with these settings at fresh seeds; runs those that are not there yet.

    Fewer than `seeds` where a run failed.
    """
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
    tried = best_trials(study, space)
    own = {key: getattr(cell.settings, key) for key in space.distributions}
    chosen = [("own", own, next((t.value for t in tried if t.values == own), None))]
    chosen += [
        (f"trial {t.number}", t.values, t.value) for t in tried[: best or 1] if t.values != own
    ]
    found = []
    for label, values, value in chosen:
        runs = again(cell, label, values, seeds, store, parent) if best else []
        finals = [float(run["final"]) for run in runs if run["status"] == "finished"]
        diverged = sum(run["status"] == "diverged" for run in runs)
        count = seeds if best else 0
        found.append(Candidate(label, values, value, finals, count, diverged))
    return found
