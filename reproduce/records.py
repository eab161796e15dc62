"""The records of a table as tidy frames, and the CSV files that hold them.

Claims and figures read these and nothing else, so they are the same from the store, from a copy of
the results folder, and from what is committed in `results/recorded`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
from pandas import DataFrame, Series

from reproduce.errors import BadInput


@dataclass(frozen=True)
class Records:
    """What the finished runs of a table left. Frames other than `runs` may be empty.

    A column that says nothing of a run is empty (NaN or an empty string).
    """

    table: str
    runs: DataFrame
    """One row a run: `cell`, `network`, `method`, `sweep`, `variant`, `seed`, `status` (finished or
    diverged), `metric`, `final`, `best`, `steps`, `diverged_at`, `wall_s`, `tau_fwd_max`,
    `utilization_...`, `memory_...` (bytes), `score_...`, every setting as `set_...`, where it came
    from (`machine`, `versions`, `git_commit`), `mlflow_run_id`"""
    curves: DataFrame
    """`mlflow_run_id`, `series` (`loss`, or the metric's name), `step`, `value`; losses are means
    over the steps up to this one"""
    stages: DataFrame
    """`mlflow_run_id`, `stage` (i), `tau_fwd`, `tau_bkwd` (updates), `t2_ratio`, `t2_distance`"""
    delays: DataFrame
    """`mlflow_run_id`, `delay` (updates), `count`: what lock-free workers measured"""
    trace: DataFrame
    """`mlflow_run_id`, `worker`, `kind`, `stage`, `microbatch`, `start_s`, `end_s`"""

    def runs_of(self, sweep: str = "", **columns: Any) -> DataFrame:
        """The runs of one sweep (of none without a name) with these values in these columns."""
        chosen = self.runs["sweep"] == sweep
        for key, value in columns.items():
            chosen &= self.runs[key] == value
        return self.runs[chosen]

    def of(self, frame: DataFrame, run: str | Series) -> DataFrame:
        """The part of `curves`, `stages`, `delays` or `trace` that is about one run."""
        run_id = run if isinstance(run, str) else run["mlflow_run_id"]
        return frame[frame["mlflow_run_id"] == run_id]


COLUMNS = {
    "curves": ("mlflow_run_id", "series", "step", "value"),
    "stages": ("mlflow_run_id", "stage", "tau_fwd", "tau_bkwd", "t2_ratio", "t2_distance"),
    "delays": ("mlflow_run_id", "delay", "count"),
    "trace": ("mlflow_run_id", "worker", "kind", "stage", "microbatch", "start_s", "end_s"),
}
TEXT = ("sweep", "variant", "signature")
"""Columns of `runs` that are text even where every row leaves them empty"""


COUNTS = ("steps", "diverged_at", "drains")
"""Whole numbers that a run may have none of: written without a decimal point"""


def frame(part: str, rows: list[dict[str, Any]]) -> DataFrame:
    """Rows of one part other than `runs` as its frame, with its columns even if there are none."""
    return DataFrame(rows, columns=list(COLUMNS[part]))


def files(folder: Path, table: str) -> Iterator[tuple[str, Path]]:
    """(part, its CSV) of a table's records."""
    yield "runs", folder / f"{table}.csv"
    for part in COLUMNS:
        yield part, folder / f"{table}-{part}.csv"


def write(records: Records, folder: Path) -> list[Path]:
    """The records as CSV; a part that is empty has no file. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for part, path in files(folder, records.table):
        found: DataFrame = getattr(records, part)
        if part != "runs" and found.empty:
            path.unlink(missing_ok=True)
            continue
        counts = {key: "Int64" for key in COUNTS if key in found}
        found.astype(counts).to_csv(path, index=False, lineterminator="\n")
        written.append(path)
    return written


def read(folder: Path, table: str) -> Records:
    """The records that `write` left in a folder.

    Raises:
        BadInput: there are none, or they cannot be read.
    """
    parts: dict[str, DataFrame] = {}
    for part, path in files(folder, table):
        if not path.exists() and part != "runs":
            parts[part] = frame(part, [])
            continue
        try:
            parts[part] = pd.read_csv(path)
        except (OSError, ValueError) as error:
            raise BadInput(
                f"no records of table {table} in {folder}: {error}; run "
                f"`make reproduce TABLE={table}` first"
            ) from error
    lacking = [key for key in (*TEXT, *COUNTS, "seed") if key not in parts["runs"]]
    if lacking:
        raise BadInput(
            f"{folder / table}.csv has no column {lacking[0]}: an older version wrote it; move it "
            f"away and run `make reproduce TABLE={table}`"
        )
    parts["runs"] = typed(parts["runs"])
    return Records(table, **{f.name: parts[f.name] for f in fields(Records) if f.name in parts})


def typed(runs: DataFrame) -> DataFrame:
    """`runs` as it came from a CSV, with text where a column of text was left empty."""
    return runs.assign(**{key: runs[key].astype(object).fillna("").astype(str) for key in TEXT})
