"""`python -m ablations tune`: opens the study, asks for trials, works, and tells the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

from optuna import Study
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from ablations.tuning import outcome, spaces
from ablations.tuning.commands import Command
from ablations.tuning.parent import Parent
from ablations.tuning.rows import check_target
from ablations.tuning.spaces import Space
from ablations.tuning.storage import NothingWaiting, connect, default_storage
from ablations.tuning.study import OPEN, open_study, repair, retry, tried_again
from ablations.tuning.trial import Objective, TrialFailed
from reproduce.cells import Cell
from reproduce.run import terminable
from reproduce.store import Store
from reproduce.tables import load
from reproduce.tracking import opening
from reproduce.train import prepare

TRIALS = 30
"""Where the command line says nothing"""
PATIENCE_S = 30.0
"""How long helpers get to close their runs after an interrupt"""


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

    cell: Cell
    space: Space
    store: Store
    storage: BaseStorage
    study: Study

    def points(self, sampler: str) -> list[dict[str, Any]]:
        """The first trials: the cell's own settings, or all those of a grid."""
        if sampler == "grid":
            return self.space.grid()
        own = self.space.own(self.cell)
        return [own] if own is not None else []

    def work(self, parent: str) -> int:
        """Take trials until none is waiting; how many runs failed."""
        objective = Objective(self.cell, self.space, self.store, self.study, parent)
        failed: list[int] = []

        def failures(study: Study, trial: FrozenTrial) -> None:
            if trial.state == TrialState.FAIL:
                failed.append(trial.number)
                if trial.user_attrs.get("status") == "failed":
                    retry(study, trial)

        while True:
            try:
                self.study.optimize(
                    objective, n_trials=1, catch=(TrialFailed,), callbacks=[failures]
                )
            except NothingWaiting:
                return len(failed)
            except Exception:
                # This machine may have slept so long that others gave its trial up.
                if not tried_again(self.study, objective.number):
                    raise
            except KeyboardInterrupt:
                if objective.number >= 0:
                    retry(self.study, self.study.get_trials()[objective.number])
                raise


def open_request(request: Request) -> Opened:
    """Raises BadInput."""
    table = load(request.table)
    cell = table.cell(request.cell)
    space = spaces.load(cell, request.space)
    prepare(cell)
    store = Store(f"{table.name} tuning")
    with opening():
        storage = connect(request.storage or default_storage())
        name = request.study or f"{table.name}: {cell.name}"
        study = open_study(name, storage, cell, space, request.sampler, request.pruner)
    return Opened(cell, space, store, storage, study)


def run_tune(
    request: Request,
    started: float,
    trials: int | None,
    jobs: int,
    conclusion: outcome.Conclusion,
) -> int:
    """Returns the exit code: 0, 1 where a run failed, 130 after an interrupt.

    Args:
        started: when this command began, seconds since the epoch.

    Raises:
        BadInput: before any trial starts.
    """
    if conclusion.write is not None:
        check_target(conclusion.write, load(request.table).cell(request.cell).name)
    opened = open_request(request)
    if request.pruner != "none" and not opened.cell.settings.eval_every:
        print(f"{opened.cell.name}: eval_every = 0, so nothing can be pruned half-way")
    points, exact = opened.points(request.sampler), request.sampler == "grid"
    total = min(trials or len(points), len(points)) if exact else trials or TRIALS
    with opening():
        parent = Parent(opened.store, opened.study)
    end = "FAILED"
    try:
        with terminable():
            failed = _search(opened, request, parent.run_id, Command(opened.study, started),
                             points, total, exact, jobs)  # fmt: skip
            left = opened.study.get_trials(deepcopy=False, states=OPEN)
            if left:
                print(f"{len(left)} trials are still with other processes; the last one sums up")
            else:
                failed += outcome.conclude(
                    opened.cell, opened.space, opened.study, opened.store, parent, conclusion
                )
        end = "FINISHED"
    except KeyboardInterrupt:
        end = "KILLED"
        print("interrupted; the same command goes on from here")
        return 130
    finally:
        parent.close(end)
    return 1 if failed else 0


def _search(
    opened: Opened,
    request: Request,
    parent: str,
    command: Command,
    points: list[dict[str, Any]],
    trials: int,
    exact: bool,
    jobs: int,
) -> int:
    """Ask for trials and work until there are none left; how many runs failed."""
    study = opened.study
    with opening():
        closed, repaired = opened.store.repair(), repair(study, opened.storage)
        asked = command.ask(points, trials, exact)
    if closed or repaired:
        print(f"{study.study_name}: took up {repaired} trials and {closed} runs of dead processes")
    there = len(study.get_trials(deepcopy=False))
    print(f"{study.study_name}: {asked} trials to do, {there - asked} there already", flush=True)
    failed = _together(opened, request, parent, jobs)
    while repair(study, opened.storage):  # somebody else died meanwhile
        failed += opened.work(parent)
    command.done()
    return failed


def _together(opened: Opened, request: Request, parent: str, jobs: int) -> int:
    """Work in so many processes, this one among them; how many runs and processes failed."""
    helpers = [_start(request, parent) for _ in range(jobs - 1)]
    try:
        failed = opened.work(parent)
        for helper in helpers:
            helper.join()
    except KeyboardInterrupt:
        for helper in helpers:
            helper.join(PATIENCE_S)  # a terminal has told them as well
        raise
    finally:
        for helper in helpers:
            helper.terminate()
            helper.join()
    return failed + sum(bool(helper.exitcode) for helper in helpers)


def _start(request: Request, parent: str) -> BaseProcess:
    process = get_context("spawn").Process(target=_help, args=(request, parent))
    process.start()
    return process


def _help(request: Request, parent: str) -> None:
    """Another process on the same study."""
    with terminable():
        try:
            failed = open_request(request).work(parent)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
    raise SystemExit(1 if failed else 0)
