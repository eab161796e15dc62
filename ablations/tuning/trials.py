"""A study's trials as records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optuna import Study
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState
from pandas import DataFrame

from ablations.tuning.spaces import Space
from ablations.tuning.study import ENDED, given

COLUMNS = ["trial", "state", "value", "step", "diverged_at", "seconds", "mlflow_run_id"]


def frame(study: Study, space: Space) -> DataFrame:
    """The study's trials that ended, one row each, by number.

    Columns: trial, state (complete, diverged, pruned, failed, or `cut off`: its process died or was
    interrupted), value (the metric; of a pruned trial the last that was scored, after so many
    steps: `step`), diverged_at, seconds (of the run; none where it was cut off), mlflow_run_id, and
    the settings.
    """
    found = []
    for trial in study.get_trials(deepcopy=False, states=(*ENDED, TrialState.FAIL)):
        state = _state(trial)
        last = trial.last_step if state == "pruned" else None
        found.append(
            {
                "trial": trial.number,
                "state": state,
                "value": None if state == "diverged" else trial.value,
                "step": last,
                "diverged_at": trial.user_attrs.get("diverged_at"),
                "seconds": trial.user_attrs.get("seconds"),
                "mlflow_run_id": trial.user_attrs.get("mlflow_run_id"),
                **space.values(
                    {key: trial.params.get(key) for key in space.distributions}, given(trial)
                ),
            }
        )
    return DataFrame(found, columns=[*COLUMNS, *space.distributions])


def _state(trial: FrozenTrial) -> str:
    status = trial.user_attrs.get("status")
    if trial.state == TrialState.COMPLETE:
        return "complete"
    if trial.state == TrialState.PRUNED:
        return "diverged" if status == "diverged" else "pruned"
    return "failed" if status in ("failed", "refused") else "cut off"


@dataclass(frozen=True)
class Tried:
    """A trial that reached its last step."""

    number: int
    values: dict[str, Any]
    value: float


def best_trials(study: Study, space: Space) -> list[Tried]:
    """Those that reached their last step, best first, each settings once."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    found: list[Tried] = []
    for trial in sorted(complete, key=lambda t: t.value or 0.0, reverse=True):
        values = space.values(trial.params, given(trial))
        if values not in [other.values for other in found]:
            found.append(Tried(trial.number, values, trial.value or 0.0))
    return found


def importances(study: Study) -> dict[str, float]:
    """Share of each setting in the variance of the values (fANOVA); empty where none is known."""
    try:
        return get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    except (ValueError, RuntimeError):  # fewer than two values, or all the same
        return {}
