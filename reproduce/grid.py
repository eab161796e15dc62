"""Run every unfinished cell of a table."""

from __future__ import annotations

from reproduce.errors import BadInput
from reproduce.execute import EXIT, execute
from reproduce.progress import make_progress
from reproduce.results import csv_path, markdown, rows, unfinished, write_csv
from reproduce.store import Store
from reproduce.tables import Table
from reproduce.train import prepare


def run_grid(table: Table) -> int:
    """Train what is not finished, print the results of all; a failed cell does not stop the next.

    Returns the exit code: 0, 1 where a cell failed, 130 after an interrupt.

    Raises:
        BadInput: a cell that cannot be trained, before any cell starts.
    """
    store = Store(table.name)
    repaired = store.repair()
    if repaired:
        print(f"{table.name}: closed {repaired} left open by a process that died")
    todo = unfinished(table, store)
    jobs = [(cell, prepare(cell)) for cell in todo]
    failed: list[str] = []
    with make_progress(todo) as progress:
        if todo:
            done = len(table.cells) - len(todo)
            progress.say(f"{table.name}: {len(todo)} cells to run, {done} already finished")
        for cell, job in jobs:
            _, end = execute(cell, job, store, progress)
            if end == "killed":
                return EXIT[end]
            if EXIT[end]:
                failed.append(cell.name)
    if not todo:
        print(f"{table.name}: nothing to do, all {len(table.cells)} cells are finished")
    export(table, store)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def export(table: Table, store: Store) -> None:
    """Write the table's CSV, print its summary, and say where both are."""
    found = rows(table, store)
    if not found:
        raise BadInput(f"table {table.name} has no finished cell in {store.uri}; run grid first")
    write_csv(found, csv_path(table))
    print(f"\n{markdown(found)}\n")
    missing = len(table.cells) - len(found)
    if missing:
        print(f"not finished: {missing} of {len(table.cells)} cells")
    print(f"records: {csv_path(table)}, store: {store.uri}")
