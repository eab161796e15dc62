"""Tables of experiments: TOML files whose rows are cells `<task>-<model>/<method>`.

    [defaults]                          settings of every network
    [network.digits-resnet50]           settings of every row of this network, and its rows:
    methods = ["gpipe", "t1+t2"]
    seeds = 3                           runs of each row (1 where it is left out)
    [cell."digits-resnet50/t1+t2"]      settings of one row alone
    [sweep.depth]                       variants of a network, on top of its own settings:
    network = "digits-resnet50"
    methods = ["t1", "t1+t2"]
    over = { stages = [10, 107], lr = [0.01, 0.02] }            every combination, and for each
    points = [{ batch_size = 64 }, { batch_size = 128 }]        every point: settings that go along

A variant's cell is called `digits-resnet50@depth:stages=10,lr=0.01,batch_size=64/t1`. Everything is
checked when a table is loaded; nothing else in the harness reads TOML.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import ablations
from reproduce.cells import Cell, make
from reproduce.errors import BadInput, choose
from reproduce.methods import METHODS, Method

SHIPPED = Path(ablations.__file__).parent
RESERVED = ("theory",)
"""Names whose CSV is not a table's"""
SECTIONS = ("defaults", "network", "cell", "sweep")


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

    def runs(self) -> list[Cell]:
        """Every cell at each of its seeds."""
        return [
            cell.with_seed(cell.settings.seed + j)
            for cell in self.cells.values()
            for j in range(cell.seeds)
        ]

    def narrowed(self, only: str | None = None, seeds: int | None = None) -> Table:
        """The cells whose names match the pattern `only`, with so many seeds each.

        Raises BadInput where no name matches.
        """
        chosen = {
            name: replace(cell, seeds=seeds or cell.seeds)
            for name, cell in self.cells.items()
            if only is None or fnmatchcase(name, only)
        }
        if not chosen:
            raise BadInput(f"--only {only!r}: matches no cell of table {self.name}; see `list`")
        return replace(self, cells=chosen)


def shipped() -> list[str]:
    """Names of the tables that come with the project."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load(table: str) -> Table:
    """A shipped table by its name, or any by its path.

    Raises BadInput, one line that names the cell, the key and the mend, for whatever is wrong.
    """
    path = SHIPPED / f"{table}.toml" if table in shipped() else Path(table)
    if path.stem in RESERVED:
        raise BadInput(f"table {table!r}: results/{path.stem}.csv is something else; rename it")
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
    defaults, networks, own, sweeps = (_table(document, section) for section in SECTIONS)
    cells: dict[str, Cell] = {}
    rows = [(name, "", _table(networks, name)) for name in networks]
    rows += [row for name in sweeps for row in _variants(name, _table(sweeps, name), networks)]
    for network, variant, shared in rows:
        for method in _methods(network, shared.pop("methods", None)):
            name = f"{network}{variant and '@'}{variant}/{method.name}"
            if name in cells:
                raise BadInput(f"{name}: methods: named twice; remove one")
            settings = defaults | shared | _table(own, name)
            seeds = _seeds(name, settings.pop("seeds", 1))
            cells[name] = make(table, network, method, settings, variant, seeds)
    for name in own.keys() - cells.keys():
        raise BadInput(f'[cell."{name}"]: no such row; {choose(name, cells)}')
    return cells


def _variants(
    sweep: str, settings: dict[str, Any], networks: Mapping[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(network, variant, settings) of every point of a sweep."""
    network = settings.pop("network", None)
    if not isinstance(network, str):
        raise BadInput(f"sweep {sweep}: network: missing; name the network it varies")
    over, points = settings.pop("over", {}), settings.pop("points", [{}])
    lists = isinstance(over, dict) and all(isinstance(v, list) and v for v in over.values())
    if not lists or not isinstance(points, list) or not all(isinstance(p, dict) for p in points):
        raise BadInput(
            f"sweep {sweep}: write over = {{ key = [value, ...] }} and points = [{{ key = value }}]"
        )
    base = _table(networks, network)
    for key in ("methods", "seeds"):
        base.pop(key, None)
    for values in product(*over.values()):
        for point in points:
            varied = dict(zip(over, values, strict=True)) | point
            label = ",".join(f"{key}={value}" for key, value in varied.items())
            yield network, f"{sweep}:{label}" if label else sweep, base | settings | varied


def _table(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key, {})
    if not isinstance(value, dict):
        raise BadInput(f"{key} = {value!r}: make it a section [{key}]")
    return dict(value)


def _seeds(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(f"{name}: seeds = {value!r}: give a whole number of 1 or more")
    return value


def _methods(network: str, names: Any) -> Iterator[Method]:
    if not isinstance(names, list) or not names:
        raise BadInput(f"{network}: methods: missing; list some of {', '.join(METHODS)}")
    for name in names:
        if name not in METHODS:
            raise BadInput(f"{network}: methods: unknown {name!r}; {choose(str(name), METHODS)}")
        yield METHODS[name]
