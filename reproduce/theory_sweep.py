"""`python -m reproduce theory`: the theory on the reference engine, recorded as `theory.csv`.

One line a run, of two kinds:

- `regression`: final loss over alpha x tau on real data (`Diabetes`), no discrepancy;
- `discrepancy`: the bisections for the largest stable alpha at tau_fwd = tau, tau_bkwd = 0, for
  some Delta (column `delta`), with T2 and without (column `corrected`).

`curvature` is lambda, or lambda_max of the regression; `optimum` is the least loss there is;
`diverged` says that the loss passed `DIVERGED` or kept growing; `steps` are those done.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch

from reproduce import provenance
from reproduce.errors import BadInput
from reproduce.progress import clock
from reproduce.run import terminable
from reproduce.theory import DECAY, DelayedQuadratic
from reproduce.theory_runs import (
    Diabetes,
    Trial,
    bisection,
    discrepancy_job,
    regression_job,
    trial,
)
from reproduce.tracking import results_folder

Row = dict[str, Any]
COLUMNS = [
    "kind", "alpha", "tau", "delta", "corrected", "decay", "steps", "final_loss", "diverged",
    "curvature", "optimum", "parameters", "git_commit", "git_dirty",
]  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """What decides the numbers in `theory.csv`."""

    steps: int = 300
    taus: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)
    alphas: tuple[float, ...] = tuple((2.0 ** np.arange(-7, 0, 0.5)).round(5).tolist())
    discrepancies: tuple[float, ...] = (-2.5, -1.0, 0.0, 1.0, 2.5, 5.0)
    tau_fwd: int = 10
    curvature: float = 1.0
    decay: float = DECAY
    tolerance: float = 0.01
    """Of the bisection, relative"""

    @property
    def digest(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def series(self) -> dict[str, Callable[[], Iterator[Row]]]:
        """What is run, in order: a name, and what yields its rows."""
        series: dict[str, Callable[[], Iterator[Row]]] = {}
        for tau in self.taus:
            series[f"regression, tau {tau}"] = partial(self.regression, tau)
        for delta in self.discrepancies:
            for corrected in (False, True):
                name = f"discrepancy {delta:+g}{' with T2' if corrected else ''}"
                series[name] = partial(self.discrepancy, delta, corrected)
        return series

    def regression(self, tau: int) -> Iterator[Row]:
        """Every alpha at one tau."""
        task = Diabetes()
        for alpha in self.alphas:
            found = trial(regression_job(alpha, tau, self.steps), alpha)
            yield _row("regression", tau, found, task.curvature(), task.optimum())

    def discrepancy(self, delta: float, corrected: bool) -> Iterator[Row]:
        """The runs of one bisection, from a bracket far wider than the answer needs."""
        decay = self.decay if corrected else None
        model = DelayedQuadratic(self.tau_fwd, 0, delta, decay, self.curvature)

        def run(alpha: float) -> Trial:
            return trial(discrepancy_job(model, alpha, self.steps), alpha)

        low, high = 5e-3 / self.curvature, 4 / self.curvature
        for found in bisection(run, low, high, self.tolerance):
            yield _row("discrepancy", self.tau_fwd, found, self.curvature, 0.0, delta, decay)


def _row(
    kind: str,
    tau: int,
    found: Trial,
    curvature: float,
    optimum: float,
    delta: float = 0.0,
    decay: float | None = None,
) -> Row:
    place = {"kind": kind, "alpha": found.alpha, "tau": tau, "delta": delta}
    technique = {"corrected": decay is not None, "decay": decay}
    return {**place, **technique, **found._asdict(), "curvature": curvature, "optimum": optimum}


def run_theory(force: bool = False, sweep: Sweep | None = None) -> Path:
    """Run the sweep and write its CSV, unless one made with the same parameters is there.

    Returns the file.

    Raises:
        BadInput: the results folder cannot be written.
    """
    sweep = sweep or Sweep()
    path = csv_path()
    if not force and made_with(path, sweep):
        print(f"{path}: made with the same parameters, kept; --force redoes it")
        return path
    part = path.with_suffix(".csv.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    except OSError as error:
        raise BadInput(
            f"{part}: {error.strerror}; set REPRODUCE_RESULTS to a folder that can be written"
        ) from error
    try:
        with terminable():
            frame = pandas.DataFrame(run(sweep), columns=COLUMNS)
        frame.to_csv(part, index=False, lineterminator="\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    print(path)
    return path


def csv_path() -> Path:
    return results_folder() / "theory.csv"


def made_with(path: Path, sweep: Sweep) -> bool:
    """Whether the file is there, whole, and of these parameters."""
    try:
        frame = pandas.read_csv(path)
    except (OSError, ValueError):
        return False
    known = list(frame.columns) == COLUMNS and len(frame) > 0
    return known and bool((frame["parameters"] == sweep.digest).all())


def run(sweep: Sweep) -> list[Row]:
    """All rows, on one thread, with a line a series."""
    git = provenance.git()
    origin = {"parameters": sweep.digest, "git_commit": git["commit"], "git_dirty": git["dirty"]}
    threads, started = torch.get_num_threads(), time.monotonic()
    torch.set_num_threads(1)  # the sums of the regression then come in one order
    rows: list[Row] = []
    try:
        series = sweep.series()
        for count, (name, make) in enumerate(series.items(), start=1):
            rows += [row | origin for row in make()]
            spent = time.monotonic() - started
            left = clock(spent / count * (len(series) - count))
            print(f"[{count}/{len(series)}, {left} left] {name}", flush=True)
    finally:
        torch.set_num_threads(threads)
    return rows
