"""The commands at work on a study, and what each asks for.

A command alone goes on to its total. Commands that are at work at the same time add up, and one
that finds that another died takes its place.
"""

from __future__ import annotations

import time
from typing import Any

from optuna import Study
from optuna.trial import TrialState

from ablations.tuning.study import asked_for, me, missing
from reproduce import provenance

PREFIX = "command "


class Command:
    """This process's command on a study. `started`: when it began, seconds since the epoch."""

    def __init__(self, study: Study, started: float) -> None:
        self.study, self.started, self._key = study, started, f"{PREFIX}{me()}"

    def _says(self, state: str, key: str | None = None) -> None:
        value = {"state": state, "time": time.time()}
        self.study.set_user_attr(key or self._key, value)

    def ask(self, points: list[dict[str, Any]], trials: int, exact: bool) -> int:
        """Ask for what is missing of so many trials; how many that is. To be called by one process
        at a time, after `study.repair`; arguments as in `asked_for`."""
        beside, died = self._others()
        if died:
            self._says("was continued", died[0])
        alone = died or exact or not beside
        if alone:
            trials = missing(self.study, points, trials, exact)
        asked = asked_for(self.study, points, trials, exact)
        self._says("works")
        return asked

    def _others(self) -> tuple[list[str], list[str]]:
        """Commands that are or were at work since this one started, and those that died at it."""
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        beside: list[str] = []
        died: list[str] = []
        for key, value in self.study.user_attrs.items():
            if not key.startswith(PREFIX) or key == self._key:
                continue
            if value["state"] == "is done":
                beside += [key] if value["time"] >= self.started else []
            elif value["state"] == "works":
                alive = _lives(key.removeprefix(PREFIX), bool(running))
                (beside if alive else died).append(key)
        return beside, died

    def done(self) -> None:
        self._says("is done")


def _lives(process: str, running: bool) -> bool:
    """Whether a process is at work. One of another machine, or from before a reboot, cannot be
    seen: it is while any trial is running."""
    if process.split()[:2] == me().split()[:2]:
        return not provenance.process_is_gone(process)
    return running
