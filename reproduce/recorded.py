"""The committed outcome: a table's records, summary and claims, and the README's copy of them."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from reproduce import records
from reproduce.claims import claims
from reproduce.claims.text import markdown as claims_markdown
from reproduce.claims.text import table as claims_table
from reproduce.errors import BadInput
from reproduce.provenance import SOURCE
from reproduce.records import Records
from reproduce.summary import markdown, origin
from reproduce.tracking import results_folder

BEGIN, END = "<!-- {part} {table}: made by `make record` -->", "<!-- end of {part} -->"


def record(
    found: Records,
    cells: Collection[str] = (),
    unfinished: Sequence[str] = (),
    root: Path = SOURCE,
) -> list[Path]:
    """Write the records to `results/recorded` and their summary as `<table>.md`. For a table that
    the README has places for also its blocks there (without sweeps), `claims.md`, and the theory's
    runs if there are any.

    Args:
        cells: those of the table, finished or not.
        unfinished: the runs that it lacks.

    Returns the files written.

    Raises:
        BadInput: the README has one of the table's two places only.
    """
    folder, table = root / "results" / "recorded", found.table
    summary = f"{markdown(found.runs)}\n\n{origin(found.runs)}\n"
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    if not any(BEGIN.format(part=part, table=table) in text for part in ("results", "claims")):
        return [*records.write(found, folder), _written(folder / f"{table}.md", summary)]
    main = f"{markdown(found.runs_of())}\n\n{origin(found.runs)}\n"
    if unfinished:
        main += (
            f"\nNot in it: {len(unfinished)} runs of the table, named at the end of claims.md.\n"
        )
    ruled = claims(found, cells)
    text = inserted(text, "results", table, main)
    text = inserted(text, "claims", table, claims_table(ruled) + "\n")
    paths = [
        *records.write(found, folder),
        _written(folder / f"{table}.md", summary),
        _written(folder / "claims.md", claims_markdown(ruled, found, unfinished)),
        _written(readme, text),
    ]
    theory = results_folder() / "theory.csv"
    if theory.exists():
        paths.append(Path(shutil.copy(theory, folder)))
    return paths


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def inserted(readme: str, part: str, table: str, text: str) -> str:
    """The README with `text` between the two marks of the table's part."""
    begin, end = BEGIN.format(part=part, table=table), END.format(part=part)
    before, found, rest = readme.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise BadInput(f"README.md has no place for {part} of {table}: add {begin!r} and {end!r}")
    return f"{before}{begin}\n\n{text}\n{end}{after}"
