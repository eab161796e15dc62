"""The command line: `python -m ablations tune CELL`."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import typer

from reproduce.command_line import TableOption, make_app

STARTED = time.time()
"""Before the slow imports: commands that are started together are told by it"""

app = make_app("Ablations of a table's cells.")


@app.callback()
def ablations() -> None:
    """Tuning of a table's cells."""


@app.command()
def tune(
    cell: Annotated[str, typer.Argument(help="<task>-<model>/<method>, an asynchronous one.")],
    table: TableOption = "embedded",
    trials: Annotated[
        int | None, typer.Option(min=1, help="In all [default: 30; a grid: all its points].")
    ] = None,
    space: Annotated[
        str | None, typer.Option(metavar="FILE", help="A search space, in place of the shipped.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Any of Optuna's, or a path to a journal file."),
    ] = None,
    study: Annotated[
        str | None, typer.Option(metavar="NAME", help="[default: the table's name and the cell's]")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at once.")] = 1,
    sampler: Annotated[Literal["tpe", "random", "grid"], typer.Option()] = "tpe",
    pruner: Annotated[Literal["hyperband", "median", "none"], typer.Option()] = "median",
    best: Annotated[
        int, typer.Option(min=0, help="So many of the best trials are run again; 0: none.")
    ] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="At so many fresh seeds each.")] = 3,
    write: Annotated[
        str | None, typer.Option(metavar="TABLE", help="A table to add the tuned row to.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="The outcome into results/recorded, to commit.")
    ] = False,
) -> None:
    """Search a cell's hyperparameters with Optuna. The same command goes on where it stopped."""
    from ablations.tuning.command import Request, run_tune
    from ablations.tuning.outcome import Conclusion

    request = Request(table, cell, space, storage, study, sampler, pruner)
    conclusion = Conclusion(best, seeds, write, record)
    raise typer.Exit(run_tune(request, STARTED, trials, jobs, conclusion))


if __name__ == "__main__":
    app()
