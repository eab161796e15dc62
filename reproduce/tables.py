"""Tables of experiments: TOML files whose rows are cells `<task>-<model>/<method>`.

    [defaults]                          settings of every network
    [network.digits-resnet50]           settings of every row of this network, and its rows:
    methods = ["gpipe", "t1+t2"]
    [cell."digits-resnet50/t1+t2"]      settings of one row alone

Everything is checked when a table is loaded; nothing else in the harness reads TOML.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ablations
from reproduce.cells import Cell, make
from reproduce.errors import BadInput, choose
from reproduce.methods import METHODS, Method

SHIPPED = Path(ablations.__file__).parent
SECTIONS = ("defaults", "network", "cell")


@dataclass(frozen=True)
class Table:
    """A named list of cells."""

    name: str
    path: Path
    cells: dict[str, Cell]

    def cell(self, name: str) -> Cell:
        """Raises BadInput, with the closest names, for a cell that is not here."""
        if name in self.cells:
            return self.cells[name]
        elsewhere = [t for t in shipped() if t != self.name and name in load(t).cells]
        mend = f"it is in --table {elsewhere[0]}" if elsewhere else choose(name, self.cells)
        raise BadInput(f"unknown cell {name!r} in table {self.name}; {mend}")


def shipped() -> list[str]:
    """Names of the tables that come with the project."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load(table: str) -> Table:
    """A shipped table by its name, or any by its path.

    Raises BadInput, one line that names the cell, the key and the mend, for whatever is wrong.
    """
    path = SHIPPED / f"{table}.toml" if table in shipped() else Path(table)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise BadInput(
            f"no table {table!r}; {choose(table, shipped())}, or give a path to one"
        ) from error
    try:
        return Table(path.stem, path, parse(text, path.stem))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path.name}: not TOML: {error}") from error
    except BadInput as error:
        raise BadInput(f"{path.name}: {error}") from error


def parse(text: str, table: str) -> dict[str, Cell]:
    """The cells of a table's text by name, in the order of their rows."""
    document = tomllib.loads(text)
    for section in document.keys() - set(SECTIONS):
        raise BadInput(f"unknown section [{section}]; {choose(section, SECTIONS)}")
    defaults, networks, own = (_table(document, section) for section in SECTIONS)
    cells: dict[str, Cell] = {}
    for network in networks:
        shared = _table(networks, network)
        for method in _methods(network, shared.pop("methods", None)):
            name = f"{network}/{method.name}"
            if name in cells:
                raise BadInput(f"{name}: methods: named twice; remove one")
            settings = defaults | shared | _table(own, name)
            cells[name] = make(table, network, method, settings)
    for name in own.keys() - cells.keys():
        raise BadInput(f'[cell."{name}"]: no such row; {choose(name, cells)}')
    return cells


def _table(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key, {})
    if not isinstance(value, dict):
        raise BadInput(f"{key} = {value!r}: make it a section [{key}]")
    return dict(value)


def _methods(network: str, names: Any) -> Iterator[Method]:
    if not isinstance(names, list) or not names:
        raise BadInput(f"{network}: methods: missing; list some of {', '.join(METHODS)}")
    for name in names:
        if name not in METHODS:
            raise BadInput(f"{network}: methods: unknown {name!r}; {choose(str(name), METHODS)}")
        yield METHODS[name]
