"""`python -m ablations tune`: opens the study, asks for trials, works, and tells the outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

from optuna import Study
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from ablations.tuning import outcome, spaces
from ablations.tuning.parent import Parent
from ablations.tuning.rows import check_target
from ablations.tuning.spaces import Space
from ablations.tuning.study import (
    OPEN,
    Command,
    connect,
    default_storage,
    me,
    open_study,
    repair,
    retry,
    waiting,
)
from ablations.tuning.trial import Objective, Superfluous, TrialFailed
from reproduce.cells import Cell
from reproduce.run import terminable
from reproduce.store import Store
from reproduce.tables import load
from reproduce.train import prepare

TRIALS = 30
"""Where the command line says nothing"""


@dataclass(frozen=True)
class Request:
    """Which study of which cell; picklable, for the processes that work on it together."""

    table: str
    cell: str
    space: str | None = None
    storage: str | None = None
    study: str | None = None
    sampler: str = "tpe"
    pruner: str = "median"


@dataclass
class Opened:
    """All that a process needs to work on a study."""

    request: Request
    cell: Cell = field(init=False)
    space: Space = field(init=False)
    store: Store = field(init=False)
    storage: BaseStorage = field(init=False)
    study: Study = field(init=False)

    def __post_init__(self) -> None:
        """Raises BadInput."""
        request = self.request
        table = load(request.table)
        self.cell = table.cell(request.cell)
        self.space = spaces.load(self.cell, request.space)
        prepare(self.cell)
        self.storage = connect(request.storage or default_storage())
        self.study = open_study(
            request.study or f"{table.name}: {self.cell.name}",
            self.storage,
            self.cell,
            self.space,
            request.sampler,
            request.pruner,
        )
        self.store = Store(f"{table.name} tuning")

    def work(self, parent: str) -> int:
        """Take trials until none is waiting; how many runs failed."""
        objective = Objective(self.cell, self.space, self.store, self.study, parent)
        failed: list[int] = []

        def failures(study: Study, trial: FrozenTrial) -> None:
            if trial.state == TrialState.FAIL and "status" in trial.user_attrs:
                failed.append(trial.number)
                retry(study, trial)

        while waiting(self.study):
            try:
                self.study.optimize(
                    objective, n_trials=1, catch=(Superfluous, TrialFailed), callbacks=[failures]
                )
            except KeyboardInterrupt:
                if objective.number >= 0:
                    retry(self.study, self.study.trials[objective.number])
                raise
        return len(failed)


def run_tune(
    request: Request,
    trials: int | None,
    jobs: int,
    best: int,
    seeds: int,
    write: str | None,
    record: bool,
) -> int:
    """Returns the exit code: 0, 1 where a run failed, 130 after an interrupt.

    Raises:
        BadInput: before any trial starts.
    """
    if write is not None:
        check_target(write, load(request.table).cell(request.cell).name)
    opened = Opened(request)
    points, exact = _points(opened, request.sampler)
    total = (min(trials, len(points)) if trials else len(points)) if exact else trials or TRIALS
    parent = Parent(opened.store, opened.study)
    try:
        with terminable():
            failed = _search(opened, parent.run_id, points, total, exact, jobs)
            left = opened.study.get_trials(deepcopy=False, states=OPEN)
            if left:
                print(f"{len(left)} trials are still with other processes; the last one sums up")
                return 1 if failed else 0
            outcome.conclude(opened.cell, opened.space, opened.study, opened.store,
                             parent, best, seeds, write, record)  # fmt: skip
    except KeyboardInterrupt:
        parent.close("KILLED")
        print("interrupted; the same command goes on from here")
        return 130
    parent.close("FINISHED")
    return 1 if failed else 0


def _points(opened: Opened, sampler: str) -> tuple[list[dict[str, Any]], bool]:
    """The first trials, and whether there are no others: the cell's own settings, or a grid."""
    if sampler == "grid":
        return opened.space.grid(), True
    own = opened.space.own(opened.cell)
    return [own] if own is not None else [], False


def _search(
    opened: Opened,
    parent: str,
    points: list[dict[str, Any]],
    trials: int,
    exact: bool,
    jobs: int,
) -> int:
    """Ask for trials and work until there are none left; how many runs of this process failed."""
    study = opened.study
    repaired = opened.store.repair() + repair(study, opened.storage)
    if repaired:
        print(f"{study.study_name}: took up what {repaired} processes that died had left")
    command = Command(study, me())
    asked = command.ask(points, trials, exact)
    there = len(study.get_trials(deepcopy=False))
    print(f"{study.study_name}: {asked} trials to do, {there - asked} there already", flush=True)
    helpers = [_start(_help, opened.request, parent) for _ in range(jobs - 1)]
    try:
        failed = opened.work(parent)
        for helper in helpers:
            helper.join()
    finally:
        for helper in helpers:
            helper.terminate()
            helper.join()
    command.done()
    return failed + sum(bool(helper.exitcode) for helper in helpers)


def _start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = get_context("spawn").Process(target=target, args=arguments)
    process.start()
    return process


def _help(request: Request, parent: str) -> None:
    """Another process on the same study."""
    with terminable():
        try:
            raise SystemExit(1 if Opened(request).work(parent) else 0)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
