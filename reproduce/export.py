"""From the store to a table's records."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from typing import Any

import pandas as pd
from pandas import DataFrame

from reproduce import records
from reproduce.cells import Cell
from reproduce.errors import BadInput
from reproduce.records import Records
from reproduce.results import finished, named, row
from reproduce.store import Store
from reproduce.tables import Table
from reproduce.tracking import Run, results_folder

POINTS = 100
"""Losses kept of a run: means over as many stretches of equal length"""
STAGE_SERIES = ("tau_fwd", "tau_bkwd", "t2_ratio", "t2_distance")


def load(table: Table) -> Records:
    """The records of a table: from the store, and written to the results folder on the way; or from
    the files of a results folder whose store has none of them, or that has no store.

    Raises:
        BadInput: neither has a finished run of the table.
    """
    folder = results_folder()
    files_alone = not os.environ.get("MLFLOW_TRACKING_URI") and not (folder / "mlflow.db").exists()
    store = None if files_alone else Store(table.name)
    if store is None or ((folder / f"{table.name}.csv").exists() and not finished(table, store)):
        return records.read(folder, table.name)
    return refresh(table, store)


def refresh(table: Table, store: Store) -> Records:
    """The records in the store, written to the results folder.

    Raises:
        BadInput: there are none, or the folder holds records of runs that the store never had.
    """
    found = export(table, store)
    path = results_folder() / f"{table.name}.csv"
    if path.exists():
        told = set(pd.read_csv(path, usecols=["mlflow_run_id"])["mlflow_run_id"])
        strange = [run for run in told - set(found.runs["mlflow_run_id"]) if not store.knows(run)]
        if strange:
            raise BadInput(
                f"{path} holds {len(strange)} runs that {store.uri} never had; move it away, or "
                "set REPRODUCE_RESULTS to another folder"
            )
    records.write(found, results_folder())
    return found


def missing(table: Table, found: Records) -> list[Cell]:
    """The runs that the table asks for and the records do not have."""
    have = set(zip(found.runs["cell"], found.runs["seed"], strict=True))
    return [run for run in table.runs() if (run.name, run.settings.seed) not in have]


def export(table: Table, store: Store) -> Records:
    """The newest finished run of every cell of the table at each seed.

    Raises:
        BadInput: there is none.
    """
    runs = finished(table, store)
    if not runs:
        raise BadInput(
            f"table {table.name} has no finished cell in {store.uri}; run "
            f"`make reproduce TABLE={table.name}` first"
        )
    curves: list[dict[str, Any]] = []
    stages: list[dict[str, Any]] = []
    delays: list[dict[str, Any]] = []
    traces: list[DataFrame] = []
    for run in {run.info.run_id: run for _, run in runs}.values():
        curves += _curves(store, run)
        stages += _stages(store, run)
        delays += [
            {"mlflow_run_id": run.info.run_id, "delay": delay, "count": int(count)}
            for delay, count in store.series(run, "delay_count")
        ]
        if run.data.params.get("trace") == "True":
            traces += _trace(store, run)
    rows = [
        named(cell, row(run)) | {"seed": cell.settings.seed, "set_target": cell.settings.target}
        for cell, run in runs
    ]
    return Records(
        table.name,
        # Once through CSV, so that the records are the same however they are come by.
        _as_read(DataFrame(rows)),
        records.frame("curves", curves),
        records.frame("stages", stages),
        records.frame("delays", delays),
        pd.concat(traces) if traces else records.frame("trace", []),
    )


def _as_read(runs: DataFrame) -> DataFrame:
    text = io.StringIO(runs.to_csv(index=False))
    return records.typed(pd.read_csv(text))


def _curves(store: Store, run: Run) -> Iterable[dict[str, Any]]:
    """The metric as it was scored, and the loss as means over stretches of steps."""
    run_id, metric = run.info.run_id, run.data.tags["metric"]
    for step, value in store.series(run, metric):
        yield {"mlflow_run_id": run_id, "series": metric, "step": step, "value": value}
    losses = store.series(run, "loss")
    length = -(-len(losses) // POINTS) or 1
    for first in range(0, len(losses), length):
        stretch = losses[first : first + length]
        mean = sum(value for _, value in stretch) / len(stretch)
        yield {
            "mlflow_run_id": run_id,
            "series": "loss",
            "step": stretch[-1][0] + 1,
            "value": float(f"{mean:.6g}"),
        }


def _stages(store: Store, run: Run) -> list[dict[str, Any]]:
    """What is known of each stage, one row each."""
    known: dict[int, dict[str, Any]] = {}
    for key in STAGE_SERIES:
        for stage, value in store.series(run, key):
            entry = known.setdefault(stage, {"mlflow_run_id": run.info.run_id, "stage": stage})
            entry[key] = value
    return [known[stage] for stage in sorted(known)]


def _trace(store: Store, run: Run) -> list[DataFrame]:
    """The timeline of a run; none, and a word about it, where its file was lost."""
    try:
        found = pd.read_csv(io.StringIO(store.text(run, "trace.csv")))
    except BadInput as error:
        print(f"left out: {error}", file=sys.stderr)
        return []
    return [found.assign(mlflow_run_id=run.info.run_id)[list(records.COLUMNS["trace"])]]
