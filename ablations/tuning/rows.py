"""A tuned row as the text of a table, to paste or to be added to a table of the user's."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduce.errors import BadInput, choose
from reproduce.tables import load, parse


def row(cell: str, values: Mapping[str, Any], comment: str) -> str:
    """The section of a table that gives a cell these settings."""
    # JSON spells numbers, strings and booleans as TOML does.
    settings = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    return f"# {comment}\n[cell.{json.dumps(cell)}]\n{settings}"


def check_target(file: str, cell: str) -> str:
    """The text of a table that a row can be added to.

    Raises:
        BadInput: it is no table, lacks the cell, or has settings for it already.
    """
    path = Path(file)
    if not path.is_file() or not os.access(path, os.W_OK):
        raise BadInput(f"--write {file}: no table there that can be written; give a path to one")
    table = load(file)
    if cell not in table.cells:
        raise BadInput(f"--write {file}: it has no cell {cell!r}; {choose(cell, table.cells)}")
    text = path.read_text(encoding="utf-8")
    if cell in tomllib.loads(text).get("cell", {}):
        raise BadInput(f'--write {file}: [cell."{cell}"] is there already; change it by hand')
    try:
        tomllib.loads(_with(text, row(cell, {}, "a trial")))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"--write {file}: no section can be added to it: {error}") from error
    return text


def _with(text: str, row: str) -> str:
    return f"{text.rstrip()}\n\n{row}"


def add(file: str, cell: str, row: str) -> None:
    """Add a row at the end of a table, whose other lines stay as they are. Raises BadInput."""
    path, changed = Path(file), _with(check_target(file, cell), row)
    parse(changed, path.stem)
    try:
        path.write_text(changed, encoding="utf-8")  # through links, and its permissions stay
    except OSError as error:
        raise BadInput(f"--write {file}: {error.strerror}; the row is printed above") from error
