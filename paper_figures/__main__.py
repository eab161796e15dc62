"""`python -m paper_figures [ID ...]`: draw figures from a table's records; without an id all of
them, and then the report.

Needs no display and trains nothing. Exit codes: 0 drawn, 2 bad input, in one line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from paper_figures import report, style
from paper_figures.figures import FIGURES
from paper_figures.material import Material, Missing
from paper_figures.report import Picture
from paper_figures.timeline import traces
from reproduce.errors import BadInput, choose
from reproduce.tables import load
from reproduce.tracking import results_folder

ENDINGS = ("png", "pdf")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures",
        description=__doc__,
        epilog=f"figures: {', '.join(FIGURES)}",
    )
    parser.add_argument("id", nargs="*", metavar="ID", help="default: every figure, and the report")
    parser.add_argument("--table", default="embedded", help="a shipped table, or a path to one")
    given = parser.parse_args(arguments)
    try:
        run(given.id, given.table)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(wanted: Sequence[str], table: str) -> None:
    """Draw these figures; none: all that the records have something for, and the report.

    Raises:
        BadInput: an unknown figure, an unknown table, no records, nothing to draw for a figure
            that was asked for, or a folder that cannot be written.
    """
    for name in wanted:
        if name not in FIGURES:
            raise BadInput(f"unknown figure {name!r}; {choose(name, FIGURES)}")
    material = Material(load(table))
    style.apply()
    try:
        if wanted:
            for name in wanted:
                draw(name, material)
        else:
            draw_all(material)
    except OSError as error:
        raise BadInput(
            f"{error.filename}: {error.strerror}; set REPRODUCE_RESULTS to a folder that can be "
            "written"
        ) from error


def draw_all(material: Material) -> None:
    """Every figure and `report.html`, which says why a figure is not there.

    They have the same names for every table, and stand for the one that was drawn last: the page
    and each figure's metadata name it.
    """
    _ = material.records  # a table without a run is refused before anything is drawn
    pictures = []
    for name, row in FIGURES.items():
        try:
            width, paths = draw(name, material)
            pictures.append(Picture(name, row.caption, paths[0], inches=width))
        except NothingDrawn as error:
            print(error)
            pictures.append(Picture(name, row.caption, None, error.reason))
    path = results_folder() / "report.html"
    path.write_text(report.page(material, pictures), encoding="utf-8")
    print(path)


class NothingDrawn(BadInput):
    """A figure for which there is nothing in the records."""

    def __init__(self, figure: str, reason: str) -> None:
        self.reason = f"not drawn: {reason}"
        super().__init__(f"{figure}: {self.reason}")


def draw(name: str, material: Material) -> tuple[float, list[Path]]:
    """Draw one figure into the figures folder; returns its width (inches) and its files, the PNG
    first.

    Raises:
        NothingDrawn: there is nothing to draw. An older figure of this name is removed then if it
            is of the same table.
    """
    paths = [style.folder() / f"{name}.{ending}" for ending in ENDINGS]
    title = f"{name} of table {material.table.name}"
    try:
        figure = FIGURES[name].draw(material)
    except Missing as missing:
        if _title(paths[0]) == title:
            for path in paths:
                path.unlink(missing_ok=True)
        raise NothingDrawn(name, str(missing)) from missing
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, for both files
    for path in paths:
        # Without a date, so that the same records give the same file.
        undated = {"CreationDate": None} if path.suffix == ".pdf" else {}
        figure.savefig(path, metadata={"Title": title} | undated)
    if name == "timeline":
        paths += _traces(material)
    for path in paths:
        print(path)
    return float(figure.get_figwidth()), paths


def _title(png: Path) -> str | None:
    """What an older figure calls itself; None: there is none, or it is somebody else's."""
    try:
        with Image.open(png) as image:
            return image.info.get("Title")
    except OSError:
        return None


def _traces(material: Material) -> list[Path]:
    """The timelines as files for chrome://tracing and ui.perfetto.dev."""
    paths = []
    for method, trace in traces(material).items():
        path = style.folder() / f"timeline-{method}.json"
        path.write_text(json.dumps(trace), encoding="utf-8")
        paths.append(path)
    return paths


if __name__ == "__main__":
    sys.exit(main())
