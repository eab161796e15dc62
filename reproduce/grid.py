"""Run every unfinished cell of a table."""

from __future__ import annotations

from reproduce import records
from reproduce.execute import EXIT, execute
from reproduce.export import export
from reproduce.progress import make_progress
from reproduce.results import unfinished
from reproduce.store import Store
from reproduce.summary import markdown
from reproduce.tables import Table
from reproduce.tracking import results_folder
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
            done = len(table.runs()) - len(todo)
            progress.say(f"{table.name}: {len(todo)} runs to do, {done} already finished")
        for cell, job in jobs:
            _, end = execute(cell, job, store, progress)
            if end == "killed":
                return EXIT[end]
            if EXIT[end]:
                failed.append(cell.title)
    if not todo:
        print(f"{table.name}: nothing to do, all {len(table.runs())} runs are finished")
    show(table, store)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def show(table: Table, store: Store) -> None:
    """Write the table's records as CSV, print their summary, and say where both are."""
    found = export(table, store)
    paths = records.write(found, results_folder())
    print(f"\n{markdown(found.runs)}\n")
    missing = len(unfinished(table, store))
    if missing:
        print(f"not finished: {missing} of {len(table.runs())} runs")
    print(f"records: {paths[0]}, store: {store.uri}")
