"""The task's final scores: taken once, of the weights that a finished run ends with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from core_cases import Regression, dense, make_job

from data.task import Final
from models.unit import Boundary
from reproduce.engine import run_pipeline
from reproduce.job import Job, Outcome
from reproduce.reference import run_reference

ENGINES = {"pipeline": partial(run_pipeline, workers=2), "reference": run_reference}


class Talkative(Regression):
    """Writes down what it is asked for; its final score is its metric once more."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        self.note("evaluate")
        return super().evaluate(forward)

    def final(self, forward: Callable[[Boundary], Boundary]) -> Final:
        self.note("final")
        return Final({"again": super().evaluate(forward)}, {"said.txt": "all\n"})

    def note(self, word: str) -> None:
        with self.path.open("a") as file:
            print(word, file=file)


def job(path: Path, **settings: object) -> Job:
    defaults = {"steps": 6, "eval_every": 2}
    return make_job(dense(), partial(Talkative, path), "t1+t2", **(defaults | settings))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_finished_run_is_scored_once_at_its_end(engine: str, tmp_path: Path) -> None:
    outcome: Outcome = ENGINES[engine](job(tmp_path / "log"))
    assert (tmp_path / "log").read_text().split() == ["evaluate"] * 3 + ["final"]
    assert outcome.scores == {"again": outcome.metrics[-1][1]}
    assert outcome.texts == {"said.txt": "all\n"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_diverged_run_has_no_final_scores(engine: str, tmp_path: Path) -> None:
    outcome: Outcome = ENGINES[engine](job(tmp_path / "log", divergence_loss=1e-9))
    assert outcome.status == "diverged"
    assert not (tmp_path / "log").exists()
    assert (outcome.scores, outcome.texts) == ({}, {})


def test_a_task_may_have_nothing_to_add(tmp_path: Path) -> None:
    outcome = run_reference(make_job(dense(), Regression, "gpipe", steps=2))
    assert outcome.status == "finished"
    assert (outcome.scores, outcome.texts) == ({}, {})
