"""A study: trials of one cell in an Optuna storage, shared by any number of processes.

What was asked for stands in the storage as waiting trials, and no count is kept anywhere else: a
process takes a waiting trial until there is none. That makes a total exact for any number of
processes, and a command that was killed goes on where it stopped.
"""

from __future__ import annotations

import datetime
import uuid
import warnings
from collections.abc import Mapping
from functools import lru_cache
from os import getpid
from typing import Any

import optuna
from optuna import Study
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from ablations.tuning.spaces import Space
from reproduce import provenance
from reproduce.cells import Cell
from reproduce.errors import BadInput
from reproduce.settings import PLACEMENT

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=ExperimentalWarning)  # heartbeats, since 2.9

GRACE_S = 150
"""A trial that gave no sign of life for so long is retried"""
ASKED = "asked"
"""The mark of a trial: the values that it was asked for with"""
AGAIN = "again"
"""The mark of a second try: the number of the first"""
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
OPEN = (TrialState.WAITING, TrialState.RUNNING)


@lru_cache
def me() -> str:
    """A name for this process that no other one ever had."""
    try:
        return provenance.process(getpid()) or uuid.uuid4().hex
    except OSError:  # no /proc
        return uuid.uuid4().hex


def open_study(
    name: str, storage: BaseStorage, cell: Cell, space: Space, sampler: str, pruner: str
) -> Study:
    """The study of this name, made where there is none.

    Raises:
        BadInput: it is about something else; names the difference.
    """
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        sampler=_sampler(sampler),
        pruner=_pruner(pruner, cell),
        direction="maximize",  # every task's metric is better where it is higher
        load_if_exists=True,
    )
    asked = {"space": space.told(), "cell": {"name": cell.name, **_fixed(cell, space)}}
    for part, new in asked.items():
        old = study.user_attrs.get(part)
        if old is None:
            study.set_user_attr(part, new)
        elif old != new:
            raise BadInput(
                f"study {name}: its {part} has changed: {_difference(old, new)}; go back, or start "
                "another study with --study NAME"
            )
    return study


def _sampler(name: str) -> BaseSampler:
    """A grid's trials come with their values, so nothing is left to sample."""
    if name == "tpe":
        return TPESampler(multivariate=True, constant_liar=True)
    return RandomSampler()


def _pruner(name: str, cell: Cell) -> BasePruner:
    """In steps of training. The median stops nothing in the first third of a run."""
    steps, every = cell.settings.steps, cell.settings.eval_every
    match name:
        case "median":
            return MedianPruner(n_startup_trials=4, n_warmup_steps=steps // 3)
        case "hyperband":
            return HyperbandPruner(min_resource=every or steps, max_resource=steps)
    return NopPruner()


def _fixed(cell: Cell, space: Space) -> dict[str, str]:
    """The settings that the trials share."""
    settings = cell.settings.model_dump(exclude=set(PLACEMENT) | set(space.distributions))
    return {key: str(value) for key, value in settings.items()}


def _difference(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """`lr was 0.001 to 0.1, is 0.001 to 1; decay is new`"""
    said = []
    for key in sorted(old.keys() | new.keys()):
        if key not in old:
            said.append(f"{key} is new ({new[key]})")
        elif key not in new:
            said.append(f"{key} is gone (it was {old[key]})")
        elif old[key] != new[key]:
            said.append(f"{key} was {old[key]}, is {new[key]}")
    return "; ".join(said)


def given(trial: FrozenTrial | optuna.Trial) -> dict[str, Any]:
    """The values that a trial was asked for with; empty where the sampler found them all."""
    return dict(trial.user_attrs.get(ASKED, {}))


def asked_for(study: Study, points: list[dict[str, Any]], trials: int, exact: bool) -> int:
    """Put so many trials into the queue; how many.

    Args:
        points: values of the first trials of a study; the sampler finds those of the rest.
        exact: the points are all there is to try, each once.
    """
    tried = [given(trial) for trial in _counted(study)]
    new = [point for point in points if point not in tried]
    asked = (new if exact else new + [{}] * trials)[:trials]
    for point in asked:
        study.enqueue_trial(point, user_attrs={ASKED: point})
    return len(asked)


def missing(study: Study, points: list[dict[str, Any]], trials: int, exact: bool) -> int:
    """How many trials the study lacks of a total; with `exact`, of these points."""
    there = [trial for trial in _counted(study) if not exact or given(trial) in points]
    return max(0, trials - len(there))


def _counted(study: Study) -> list[FrozenTrial]:
    """All trials that did not fail."""
    return [t for t in study.get_trials(deepcopy=False) if t.state != TrialState.FAIL]


def repair(study: Study, storage: BaseStorage) -> int:
    """Trials whose process is gone or silent: failed, and each tried once more; how many.

    Of processes on this machine that is known at once; of others where the storage has heartbeats
    (a database), after `GRACE_S`.
    """
    before = len(study.get_trials(deepcopy=False, states=(TrialState.FAIL,)))
    optuna.storages.fail_stale_trials(study)
    study_id = storage.get_study_id_from_name(study.study_name)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if not _is_gone(trial):
            continue
        trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        try:
            storage.set_trial_state_values(trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            continue  # another process was first
        retry(study, study.get_trials()[trial.number])
    return len(study.get_trials(deepcopy=False, states=(TrialState.FAIL,))) - before


def _is_gone(trial: FrozenTrial) -> bool:
    if "process" in trial.user_attrs:
        return provenance.process_is_gone(trial.user_attrs["process"])
    # Taken, and never begun: its process died in between, or is about to write its name.
    taken = trial.datetime_start
    return taken is not None and datetime.datetime.now() - taken > datetime.timedelta(seconds=10)


def retry(study: Study, trial: FrozenTrial) -> None:
    """Put a failed trial back into the queue with the same values, unless it was a second try."""
    if trial.state != TrialState.FAIL or AGAIN in trial.user_attrs:
        return
    if tried_again(study, trial.number):
        return
    # It may have been cut off before it took up what it was asked for with.
    values = given(trial) | trial.params
    study.enqueue_trial(values, user_attrs={ASKED: given(trial), AGAIN: trial.number})


def tried_again(study: Study, number: int) -> bool:
    """Whether a trial was failed, by whomever, and is in the queue once more or was."""
    return any(t.user_attrs.get(AGAIN) == number for t in study.get_trials(deepcopy=False))
