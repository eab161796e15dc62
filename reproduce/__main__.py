"""The command line: `python -m reproduce COMMAND`.

Slow imports wait for the command that needs them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from reproduce.command_line import TableOption, make_app
from reproduce.errors import BadInput

app = make_app("PipeMare, reproduced: cells of a table of experiments, run and recorded.")


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
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each cell, in place of the table's.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Cells to run, as 'digits-*/t1*'.")
    ] = None,
) -> None:
    """Train every unfinished cell of a table, then print and export the results."""
    from reproduce.grid import run_grid
    from reproduce.run import terminable
    from reproduce.tables import load

    loaded = load(table)
    with terminable():
        raise typer.Exit(run_grid(loaded, only, seeds))


@app.command()
def results(
    table: TableOption = "embedded",
    markdown: Annotated[bool, typer.Option("--markdown", help="The table alone.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Into results/recorded and the README, to commit.")
    ] = False,
) -> None:
    """Export a table's records to CSV in the results folder, and print their summary."""
    from reproduce import recorded, summary
    from reproduce.export import load as load_records
    from reproduce.export import missing
    from reproduce.grid import show
    from reproduce.tables import load

    loaded = load(table)
    found = load_records(loaded)
    if markdown:
        print(summary.markdown(found.runs))
    elif record:
        lacking = [run.title for run in missing(loaded, found)]
        for path in recorded.record(found, loaded.cells, lacking):
            print(path)
    else:
        show(loaded, found)


@app.command()
def claims(
    table: TableOption = "embedded",
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the findings; - is standard output.")
    ] = None,
) -> None:
    """Rule on the paper's claims C1 to C5 from a table's records, into claims.md in the results
    folder."""
    from reproduce.claims.command import run_claims
    from reproduce.tables import load

    run_claims(load(table), json)


@app.command()
def schedule(
    method: Annotated[str, typer.Option(help="A method, such as t1+t2.")],
    stages: Annotated[int, typer.Option(min=1, help="P")],
    microbatches: Annotated[int, typer.Option(min=1, help="N")],
    minibatches: Annotated[int, typer.Option(min=1, help="Updates to show.")] = 4,
    kind: Annotated[
        Literal["ticks", "1f1b"], typer.Option("--schedule", help="Of asynchronous methods.")
    ] = "ticks",
    segment: Annotated[
        int, typer.Option(min=0, help="S, stages a segment of PipeMare Recompute; 0: none.")
    ] = 0,
) -> None:
    """Who does what in each tick, which weights each forward reads, and the delays."""
    from reproduce.errors import choose
    from reproduce.methods import METHODS
    from reproduce.schedule_text import render

    if method not in METHODS:
        raise BadInput(f"--method {method!r}: unknown; {choose(method, METHODS)}")
    if METHODS[method].lockfree:
        raise BadInput(f"--method {method}: lock-free workers follow no schedule; choose another")
    try:
        print(render(METHODS[method], stages, microbatches, minibatches, kind, segment))
    except ValueError as error:
        raise BadInput(f"--segment: {error}") from error


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


@app.command()
def theory(
    force: Annotated[bool, typer.Option("--force", help="Redo what is there.")] = False,
) -> None:
    """Run the theory's models on the reference engine, into theory.csv; under a minute."""
    from reproduce.theory_sweep import run_theory

    run_theory(force)


if __name__ == "__main__":
    app()
