"""One cell from the command line: the changes asked for, the run, the JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

from reproduce.cells import Cell, override, parse_assignment
from reproduce.errors import BadInput
from reproduce.execute import EXIT, execute
from reproduce.progress import make_progress
from reproduce.report import Report
from reproduce.store import Store
from reproduce.tables import load
from reproduce.train import prepare


def run_cell(
    table: str, name: str, options: Mapping[str, Any], assignments: Sequence[str], file: str | None
) -> int:
    """Train one cell, record it, write its JSON to `file`. Returns the exit code.

    Raises:
        BadInput: before anything is trained.
    """
    cell = changed(load(table).cell(name), options, assignments)
    if file not in (None, "-"):
        check_writable(Path(file))
    job = prepare(cell)
    store = Store(cell.table)
    with (
        terminable(),
        output(to_error=file == "-") as stream,
        make_progress([cell], stream) as progress,
    ):
        found, end = execute(cell, job, store, progress)
        progress.say(f"run {found['mlflow_run_id']} in {store.uri}")
    if file is not None:
        write(found, file)
    return EXIT[end]


def changed(cell: Cell, options: Mapping[str, Any], assignments: Sequence[str]) -> Cell:
    """The cell with the settings of the command line. Raises BadInput for what cannot be."""
    changes = dict(options)
    for key, value in map(parse_assignment, assignments):
        if key in changes:
            raise BadInput(f"{cell.name}: {key}: given twice; leave one out")
        changes[key] = value
    found = override(cell, changes) if changes else cell
    if found.settings.engine == "reference" and changes.get("workers", 1) != 1:
        raise BadInput(
            f"{cell.name}: workers = {changes['workers']}: the reference engine is one process; "
            "leave workers out, or choose --engine pipeline"
        )
    if found.method.lockfree and "workers" in changes:
        raise BadInput(
            f"{cell.name}: workers = {changes['workers']}: its workers share the weights, so their "
            "number decides the result; set lockfree_workers"
        )
    return found


def check_writable(path: Path) -> None:
    """Raises BadInput where no file can be written at `path`."""
    existed = path.exists()
    try:
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise BadInput(f"--json {path}: {error.strerror}; choose another file") from error


def write(found: Report, file: str) -> None:
    text = json.dumps(found, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    if file == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        Path(file).write_text(text, encoding="utf-8")


@contextmanager
def output(to_error: bool) -> Iterator[Any]:
    """The stream for everything but the JSON. With `to_error` whatever libraries and workers print
    to standard output goes to standard error too, so that the JSON stands alone."""
    if not to_error:
        yield sys.stdout
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield sys.stderr
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def terminable() -> Iterator[None]:
    """A termination signal ends the run as Ctrl-C does, so that the store learns of it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
