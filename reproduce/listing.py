"""What `list` prints."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from reproduce.cells import Cell
from reproduce.tables import Table


def listing(table: Table) -> str:
    """Each network, and each sweep of one, with the settings its rows share; then its rows with
    what is theirs alone."""
    lines = [f"table {table.name}: {len(table.cells)} cells, {len(table.runs())} runs"]
    for network, group in groupby(table.cells.values(), _heading):
        cells = list(group)
        shared = dict(_common(cells))
        lines += ["", f"{network} ({len(cells[0].network())} units): {_text(shared)}"]
        for cell in cells:
            own = {
                key: value
                for key, value in _set(cell).items()
                if key not in shared and f"{key}=" not in cell.variant
            }
            note = f"  [{_text(own)}]" if own else ""
            seeds = f", {cell.seeds} seeds" if cell.seeds > 1 else ""
            lines.append(f"  {cell.name:32} {cell.method.summary}{seeds}{note}")
    return "\n".join(lines)


def _heading(cell: Cell) -> str:
    return f"{cell.network_name}@{cell.sweep}" if cell.sweep else cell.network_name


def _set(cell: Cell) -> dict[str, Any]:
    return cell.settings.model_dump(include=cell.settings.model_fields_set)


def _common(cells: list[Cell]) -> list[tuple[str, Any]]:
    others = [_set(cell) for cell in cells[1:]]
    absent = object()
    return [
        (key, value)
        for key, value in _set(cells[0]).items()
        if all(other.get(key, absent) == value for other in others)
    ]


def _text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())
