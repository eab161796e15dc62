"""Runs read back from the store: one flat row each."""

from __future__ import annotations

from itertools import count
from typing import Any

from reproduce.cells import Cell
from reproduce.store import Store
from reproduce.tables import Table
from reproduce.tracking import Run

TAGS = (
    "table", "cell", "status", "metric", "weights_sha256", "config_hash", "git_commit",
    "git_dirty", "machine", "versions", "device", "signature", "resolution",
)  # fmt: skip
NUMBERS = (
    "final", "best", "steps", "diverged_at", "last_finite_loss", "drains", "tau_fwd_max",
    "utilization_measured", "utilization_model_workers", "utilization_model_stages",
    "memory_weights", "memory_gradients", "memory_optimizer", "memory_discrepancy",
    "memory_stash", "memory_activations_peak", "wall_s", "loop_s",
)  # fmt: skip
WHAT = {"network", "method", "units"}
"""Parameters that are no settings"""
WHOLE = {"steps", "diverged_at", "drains"}
"""Counts, and every number of bytes"""

Row = dict[str, Any]


def unfinished(table: Table, store: Store) -> list[Cell]:
    """The runs of the table whose configuration has no finished run; equal ones once."""
    done = store.finished()
    todo = {cell.config_hash: cell for cell in table.runs() if cell.config_hash not in done}
    return list(todo.values())


def finished(table: Table, store: Store) -> list[tuple[Cell, Run]]:
    """The newest finished run of each cell at each of its seeds, in the table's order.

    Seeds are those the table asks for, and any that follow on them without a gap.
    """
    done = store.finished()
    found: list[tuple[Cell, Run]] = []
    for cell in table.cells.values():
        for j in count():
            at_seed = cell.with_seed(cell.settings.seed + j)
            run = done.get(at_seed.config_hash)
            if run is not None:
                found.append((at_seed, run))
            elif j >= cell.seeds:
                break
    return found


def rows(table: Table, store: Store) -> list[Row]:
    """One row a finished run, under the name that its cell has in this table."""
    return [named(cell, row(run)) for cell, run in finished(table, store)]


def named(cell: Cell, found: Row) -> Row:
    """The row as this cell's: equal configurations share a run, whatever their names."""
    name = {"table": cell.table, "cell": cell.name, "sweep": cell.sweep, "variant": cell.variant}
    return found | name


def row(run: Run) -> Row:
    """One run as one flat row: what it is, what it came to (the task's final scores as
    `score_...`), and every setting (`set_...`)."""
    tags, metrics = run.data.tags, run.data.metrics
    told = {key: tags.get(key, "") for key in TAGS}
    counted = {
        key: int(metrics[key]) if key in WHOLE or key.startswith("memory_") else metrics[key]
        for key in NUMBERS
        if key in metrics
    }
    scores = {key: value for key, value in metrics.items() if key.startswith("score_")}
    settings = {
        key if key in WHAT else f"set_{key}": "" if value == "None" else value
        for key, value in run.data.params.items()
    }
    numbers = {key: counted.get(key, "") for key in NUMBERS}
    return {**told, **numbers, **scores, **settings, "mlflow_run_id": run.info.run_id}
