"""Records read back: one tidy row a cell, and the table that sums them up."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from reproduce.cells import Cell
from reproduce.progress import clock
from reproduce.store import Store
from reproduce.tables import Table
from reproduce.tracking import Run, results_folder

TAGS = (
    "table", "cell", "status", "metric", "weights_sha256", "config_hash", "git_commit",
    "git_dirty", "machine", "versions", "device", "signature",
)  # fmt: skip
NUMBERS = (
    "final", "best", "steps", "diverged_at", "last_finite_loss", "drains", "tau_fwd_max",
    "utilization_measured", "utilization_model_workers", "utilization_model_stages",
    "memory_weights", "memory_gradients", "memory_optimizer", "memory_discrepancy",
    "memory_stash", "memory_activations_peak", "wall_s",
)  # fmt: skip
WHAT = {"network", "method", "units"}
"""Parameters that are no settings"""
WHOLE = {"steps", "diverged_at", "drains"}
"""Counts, and every number of bytes"""

Row = dict[str, Any]


def unfinished(table: Table, store: Store) -> list[Cell]:
    """The cells whose configuration has no finished run."""
    done = store.finished()
    return [cell for cell in table.cells.values() if cell.config_hash not in done]


def rows(table: Table, store: Store) -> list[Row]:
    """The newest finished run of each cell of the table that has one, in the table's order."""
    done = store.finished()
    found = (done.get(cell.config_hash) for cell in table.cells.values())
    return [row(run) for run in found if run is not None]


def row(run: Run) -> Row:
    """One run as one flat row: what it is, what it came to, and every setting (`set_...`)."""
    tags, metrics = run.data.tags, run.data.metrics
    told = {key: tags.get(key, "") for key in TAGS}
    counted = {
        key: int(metrics[key]) if key in WHOLE or key.startswith("memory_") else metrics[key]
        for key in NUMBERS
        if key in metrics
    }
    settings = {
        key if key in WHAT else f"set_{key}": "" if value == "None" else value
        for key, value in run.data.params.items()
    }
    numbers = {key: counted.get(key, "") for key in NUMBERS}
    return {**told, **numbers, **settings, "mlflow_run_id": run.info.run_id}


def csv_path(table: Table) -> Path:
    return results_folder() / f"{table.name}.csv"


def write_csv(found: Iterable[Row], path: Path) -> None:
    """One line a row; the columns are those of all rows, empty where a network has no such."""
    found = list(found)
    columns = list(dict.fromkeys(key for each in found for key in each))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


def _number(key: str, digits: int, scale: float = 1.0) -> Callable[[Row], str]:
    def text(each: Row) -> str:
        value = each.get(key, "")
        return "–" if value == "" else f"{value * scale:.{digits}f}"

    return text


def _pair(left: Callable[[Row], str], right: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda each: f"{left(each)} / {right(each)}"


MEGA = 1e-6
SUMMARY: Mapping[str, Callable[[Row], str]] = {
    "cell": lambda each: str(each["cell"]),
    "metric": lambda each: str(each["metric"]),
    "final": _number("final", 2),
    "best": _number("best", 2),
    "diverged at": _number("diverged_at", 0),
    "steps": _number("steps", 0),
    "τ max": _number("tau_fwd_max", 2),
    "utilization": _number("utilization_measured", 2),
    "model K_w / P": _pair(
        _number("utilization_model_workers", 2), _number("utilization_model_stages", 2)
    ),
    "weights MB": _number("memory_weights", 2, MEGA),
    "δ MB": _number("memory_discrepancy", 2, MEGA),
    "stash MB": _number("memory_stash", 2, MEGA),
    "wall": lambda each: clock(each["wall_s"]),
}
"""Column -> its text; – where there is nothing to tell"""


def markdown(found: Iterable[Row]) -> str:
    """The summary as a table of markdown that reads well as plain text too."""
    lines = [list(SUMMARY)] + [[text(each) for text in SUMMARY.values()] for each in found]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)
