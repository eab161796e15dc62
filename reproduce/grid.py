"""Run every unfinished cell of a table."""

from __future__ import annotations

from reproduce.execute import EXIT, execute
from reproduce.export import missing, refresh
from reproduce.progress import make_progress
from reproduce.records import Records
from reproduce.results import unfinished
from reproduce.store import Store
from reproduce.summary import markdown
from reproduce.tables import Table
from reproduce.tracking import results_folder
from reproduce.train import prepare


def run_grid(table: Table, only: str | None = None, seeds: int | None = None) -> int:
    """Train what is not finished, print the results of all; a failed cell does not stop the next.

    Args:
        only: a pattern of cell names; the others are left as they are.
        seeds: how many runs of each cell, in place of the table's own number.

    Returns the exit code: 0, 1 where a cell failed, 130 after an interrupt.

    Raises:
        BadInput: a cell that cannot be trained, before any cell starts, or no cell of that name.
    """
    chosen = table.narrowed(only, seeds)
    store = Store(table.name)
    repaired = store.repair()
    if repaired:
        print(f"{table.name}: closed {repaired} left open by a process that died")
    todo = unfinished(chosen, store)
    jobs = [(cell, prepare(cell)) for cell in todo]
    failed: list[str] = []
    with make_progress(todo) as progress:
        if todo:
            done = len({cell.config_hash for cell in chosen.runs()}) - len(todo)
            progress.say(f"{table.name}: {len(todo)} runs to do, {done} already finished")
        for cell, job in jobs:
            _, end = execute(cell, job, store, progress)
            if end == "killed":
                return EXIT[end]
            if EXIT[end]:
                failed.append(cell.title)
    if not todo:
        print(f"{table.name}: nothing to do, all {len(chosen.runs())} runs are finished")
    if len(failed) < len(todo) or not todo:
        show(table, refresh(table, store))
        print(f"store: {store.uri}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def show(table: Table, found: Records) -> None:
    """Print the summary of a table's records, what it lacks, and where the records are."""
    print(f"\n{markdown(found.runs)}\n")
    lacking = missing(table, found)
    if lacking:
        print(f"not finished: {len(lacking)} of {len(table.runs())} runs")
    print(f"records: {results_folder() / table.name}.csv")
