"""A study: trials of one cell in an Optuna storage, shared by any number of processes.

What was asked for stands in the storage as waiting trials, and no count is kept anywhere else: a
process takes a waiting trial until there is none. That makes a total exact for any number of
processes, and a command that was killed goes on where it stopped.
"""

from __future__ import annotations

import random
import uuid
import warnings
from collections.abc import Mapping
from os import getpid
from typing import Any

import optuna
from optuna import Study
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import (
    BaseStorage,
    JournalStorage,
    RDBStorage,
    RetryHeartbeatStaleTrialCallback,
)
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
from optuna.trial import FrozenTrial, TrialState

from ablations.tuning.spaces import Space
from reproduce import provenance
from reproduce.cells import Cell
from reproduce.errors import BadInput
from reproduce.settings import PLACEMENT
from reproduce.tracking import opening, results_folder

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=ExperimentalWarning)
# Heartbeats, and a second try for a trial whose process died, have been experimental since 2.8.

HEARTBEAT_S, GRACE_S = 30, 150
"""A trial on another machine that gave no sign of life for so long is retried"""
BUSY_S = 120
"""How long to wait for others' writes to a SQLite file"""
ASKED = "asked"
"""Marks the trials that were asked for, with the values that were given"""
DONE = (TrialState.COMPLETE, TrialState.PRUNED)
OPEN = (TrialState.WAITING, TrialState.RUNNING)


def default_storage() -> str:
    return f"sqlite:///{results_folder().resolve() / 'tuning.db'}"


def connect(url: str) -> BaseStorage:
    """The storage at a URL of SQLAlchemy's or of Redis; a bare path is a journal file.

    Raises:
        BadInput: there is none and none can be made.
    """
    retry = RetryHeartbeatStaleTrialCallback(max_retry=1)
    try:
        if "://" not in url:
            return JournalStorage(JournalFileBackend(url))
        if url.startswith("redis"):
            return JournalStorage(JournalRedisBackend(url))
        local = url.startswith("sqlite")
        if local:
            results_folder().mkdir(parents=True, exist_ok=True)
        return RDBStorage(
            url,
            engine_kwargs={"connect_args": {"timeout": BUSY_S}} if local else None,
            heartbeat_interval=HEARTBEAT_S,
            grace_period=GRACE_S,
            heartbeat_stale_trial_callback=retry,
        )
    except Exception as error:  # SQLAlchemy's, a driver's or the file system's
        first = str(error).strip().split("\n")[0]
        raise BadInput(
            f"--storage {url}: {first}; give a path or a URL that Optuna knows"
        ) from error


def open_study(
    name: str, storage: BaseStorage, cell: Cell, space: Space, sampler: str, pruner: str
) -> Study:
    """The study of this name, made where there is none.

    Raises:
        BadInput: it is about something else; names the difference.
    """
    with opening():
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
                    f"study {name}: its {part} has changed: {_difference(old, new)}; go back, or "
                    "start another study with --study NAME"
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


# What is asked for.


def me() -> str:
    """A name for this process that no other one ever had."""
    try:
        return provenance.process(getpid()) or uuid.uuid4().hex
    except OSError:
        return uuid.uuid4().hex


class Command:
    """One command at work on a study: what it asks for, and that it is there.

    A command alone goes on to its total. One that finds others at work adds its trials to theirs,
    and one that finds that another died takes its place.
    """

    def __init__(self, study: Study, name: str) -> None:
        self.study, self._key = study, f"command {name}"

    def _says(self, state: str, key: str | None = None) -> None:
        self.study.set_user_attr(key or self._key, state)

    def ask(self, points: list[dict[str, Any]], trials: int, exact: bool) -> int:
        """Put what is missing of so many trials into the queue; how many.

        Args:
            points: values of the first trials; the sampler finds those of the rest.
            exact: the points are all there is to try, each once.
        """
        self._says("starts")
        others = {
            key: state
            for key, state in self.study.user_attrs.items()
            if key.startswith("command ") and key != self._key and state in ("starts", "works")
        }
        gone = {key for key in others if provenance.process_is_gone(key.removeprefix("command "))}
        died = [key for key in gone if others[key] == "works"]
        if died:
            self._says("was continued", random.choice(died))
        there = [t for t in self.study.get_trials(deepcopy=False) if t.state != TrialState.FAIL]
        tried = [trial.user_attrs.get(ASKED) for trial in there]
        new = [point for point in points if point not in tried]
        add_to_others = len(others) > len(gone) and not died and not exact
        missing = trials if add_to_others else max(0, trials - len(there))
        for point in (new + [{}] * missing)[:missing]:
            self.study.enqueue_trial(point, user_attrs={ASKED: point})
        self._says("works")
        return missing

    def done(self) -> None:
        self._says("is done")


def repair(study: Study, storage: BaseStorage) -> int:
    """Trials of processes on this machine that died: failed, and each tried once more; how many."""
    found = 0
    study_id = storage.get_study_id_from_name(study.study_name)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if not provenance.process_is_gone(trial.user_attrs.get("process", "")):
            continue
        trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        try:
            storage.set_trial_state_values(trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            continue  # another process was first
        retry(study, trial)
        found += 1
    return found


def retry(study: Study, trial: FrozenTrial) -> None:
    """Put a trial that was cut off back into the queue, with the same values; once."""
    RetryHeartbeatStaleTrialCallback(max_retry=1)(study, trial)


def waiting(study: Study) -> bool:
    return bool(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))


def finished(study: Study) -> list[FrozenTrial]:
    """Finished and pruned trials, by number."""
    return study.get_trials(deepcopy=False, states=DONE)
