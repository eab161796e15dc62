"""The command line: `python -m reproduce COMMAND`.

Slow imports wait for the command that needs them.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from reproduce.errors import BadInput


class OneLineErrors(TyperGroup):
    """Bad input is one line on standard error and exit code 2."""

    def main(self, *args: Any, **extra: Any) -> Any:
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
        except BadInput as error:
            message, code = str(error), 2
        except typer.TyperException as error:
            message, code = f"{error.format_message().rstrip('.')}; see --help", error.exit_code
        except typer.Abort:
            message, code = "interrupted", 130
        else:
            sys.exit(code or 0)
        typer.echo(f"error: {' '.join(message.split())}", err=True)
        sys.exit(code)


app = typer.Typer(
    cls=OneLineErrors,
    help="PipeMare, reproduced: cells of a table of experiments, run and recorded.",
    add_completion=False,
    rich_markup_mode=None,
)

TableOption = Annotated[str, typer.Option(help="A shipped table, or a path to one.")]


@app.command("list")
def list_cells(table: TableOption = "embedded") -> None:
    """The cells of a table, with the settings that every row of a network shares."""
    from reproduce.listing import listing
    from reproduce.tables import load

    print(listing(load(table)))


@app.command()
def run(
    cell: Annotated[str, typer.Argument(help="<task>-<model>/<method>; `list` names them.")],
    table: TableOption = "embedded",
    engine: Annotated[
        Literal["pipeline", "reference"] | None, typer.Option(help="In place of the table's.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes of the pipeline engine.")] = None,
    seed: Annotated[int | None, typer.Option(help="Also picks the held-out fold.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting; repeat.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the result; - is standard output.")
    ] = None,
) -> None:
    """Train one cell and record it. A diverged cell is a result: exit code 0."""
    from reproduce.run import run_cell

    options = {"engine": engine, "workers": workers, "seed": seed, "steps": steps}
    given = {key: value for key, value in options.items() if value is not None}
    raise typer.Exit(run_cell(table, cell, given, assign or [], json))


@app.command()
def grid(
    table: Annotated[str, typer.Argument(help="A shipped table, or a path to one.")],
) -> None:
    """Train every unfinished cell of a table, then print and export the results."""
    from reproduce.grid import run_grid
    from reproduce.run import terminable
    from reproduce.tables import load

    loaded = load(table)
    with terminable():
        raise typer.Exit(run_grid(loaded))


@app.command()
def results(
    table: TableOption = "embedded",
    markdown: Annotated[bool, typer.Option("--markdown", help="The table alone.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Into results/recorded and the README, to commit.")
    ] = False,
) -> None:
    """Export a table's records to CSV in the results folder, and print their summary."""
    from reproduce import grid as grid_module
    from reproduce import recorded
    from reproduce import results as records
    from reproduce.store import Store
    from reproduce.tables import load

    loaded = load(table)
    store = Store(loaded.name)
    if markdown:
        print(records.markdown(records.rows(loaded, store)))
    elif record:
        for path in recorded.record(loaded.name, records.rows(loaded, store)):
            print(path)
    else:
        grid_module.export(loaded, store)


@app.command()
def schedule(
    method: Annotated[str, typer.Option(help="A method, such as t1+t2.")],
    stages: Annotated[int, typer.Option(min=1, help="P")],
    microbatches: Annotated[int, typer.Option(min=1, help="N")],
    minibatches: Annotated[int, typer.Option(min=1, help="Updates to show.")] = 4,
    kind: Annotated[
        Literal["ticks", "1f1b"], typer.Option("--schedule", help="Of asynchronous methods.")
    ] = "ticks",
) -> None:
    """Who does what in each tick, which weights each forward reads, and the delays."""
    from reproduce.errors import choose
    from reproduce.methods import METHODS
    from reproduce.schedule_text import render

    if method not in METHODS:
        raise BadInput(f"--method {method!r}: unknown; {choose(method, METHODS)}")
    print(render(METHODS[method], stages, microbatches, minibatches, kind))


@app.command()
def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes: does it run? The numbers mean nothing.")
    ] = False,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the result; - is standard output.")
    ] = None,
) -> None:
    """Time the engines beside each other and beside public peers, on an idle machine."""
    from reproduce.bench.command import run_bench

    raise typer.Exit(run_bench(quick, json))


if __name__ == "__main__":
    app()
