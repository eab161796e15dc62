"""`python -m paper_figures [ID ...]`: draw the figures, all of them without an id."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from matplotlib.figure import Figure

from paper_figures import style
from paper_figures.schedule import schedule

FIGURES: dict[str, Callable[[], Figure]] = {"schedule": schedule}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paper_figures", description=__doc__)
    parser.add_argument("id", nargs="*", choices=[[], *FIGURES], help="default: every figure")
    wanted = parser.parse_args().id or list(FIGURES)
    style.apply()
    for name in wanted:
        figure = FIGURES[name]()
        for ending in ("png", "pdf"):
            path = style.folder() / f"{name}.{ending}"
            figure.savefig(path)
            print(path)


if __name__ == "__main__":
    main()
