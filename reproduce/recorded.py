"""The committed outcome: a table's records as CSV and text, and the README's own copy of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from reproduce.errors import BadInput
from reproduce.progress import clock
from reproduce.provenance import SOURCE
from reproduce.results import Row, markdown, write_csv

BEGIN, END = "<!-- results {table}: made by `make record` -->", "<!-- end of results -->"


def record(table: str, rows: Sequence[Row], root: Path = SOURCE) -> list[Path]:
    """Write `results/recorded/<table>.csv` and `.md`, and the table's block of the README.

    Returns the files written.

    Raises:
        BadInput: the README has no place for this table.
    """
    folder = root / "results" / "recorded"
    text = f"{markdown(rows)}\n\n{origin(rows)}\n"
    readme = root / "README.md"
    new_readme = inserted(readme.read_text(encoding="utf-8"), table, text)
    write_csv(rows, folder / f"{table}.csv")
    (folder / f"{table}.md").write_text(text, encoding="utf-8")
    readme.write_text(new_readme, encoding="utf-8")
    return [folder / f"{table}.csv", folder / f"{table}.md", readme]


def origin(rows: Sequence[Row]) -> str:
    """Where the rows come from: machines, versions, commits, and how long they took."""
    machines = sorted({machine(row) for row in rows})
    commits = sorted({row["git_commit"][:10] + _changed(row) for row in rows})
    versions = sorted({f"torch {json.loads(row['versions'])['torch']}" for row in rows})
    took = clock(sum(float(row["wall_s"]) for row in rows))
    return (
        f"{len(rows)} cells in {took}, on {'; '.join(machines)}; {', '.join(versions)}; "
        f"commit {', '.join(commits)}."
    )


def machine(row: Row) -> str:
    facts = json.loads(row["machine"])
    gpus = "".join(f", {gpu}" for gpu in facts["gpus"])
    return f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']:.0f} GiB{gpus}"


def _changed(row: Row) -> str:
    return " with changes" if row["git_dirty"] == "true" else ""


def inserted(readme: str, table: str, text: str) -> str:
    """The README with `text` between the table's two marks."""
    begin = BEGIN.format(table=table)
    before, found, rest = readme.partition(begin)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise BadInput(f"README.md has no place for {table}: add {begin!r} and {END!r}")
    return f"{before}{begin}\n\n{text}\n{END}{after}"
