"""`python -m reproduce claims`: rule on the records of a table, print, and write."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from reproduce.claims import claims
from reproduce.claims.text import as_json, markdown, show
from reproduce.errors import BadInput
from reproduce.export import load, missing
from reproduce.run import check_writable, output, write
from reproduce.tables import Table
from reproduce.tracking import results_folder


def run_claims(table: Table, file: str | None) -> None:
    """Print the claims with their verdicts, write `claims.md` into the results folder, and the
    findings as JSON to `file`.

    Raises:
        BadInput: the table has no records, or a file cannot be written.
    """
    if file not in (None, "-"):
        check_writable(Path(file))
    with output(to_error=file == "-") as stream:
        records = load(table)
        found = claims(records, table.cells)
        unfinished = [run.title for run in missing(table, records)]
        show(found, Console(file=stream, markup=False, highlight=False))
        path = results_folder() / "claims.md"
        try:
            path.write_text(markdown(found, records, unfinished), encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}; mend REPRODUCE_RESULTS") from error
        if unfinished:
            print(f"not finished: {len(unfinished)} of {len(table.runs())} runs", file=stream)
        print(path, file=stream)
    if file is not None:
        write(as_json(found, records, unfinished), file)
