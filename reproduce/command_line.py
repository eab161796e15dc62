"""What the project's commands share: options, and errors in one line."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from reproduce.errors import BadInput

TableOption = Annotated[str, typer.Option(help="A shipped table, or a path to one.")]


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


def make_app(help: str) -> typer.Typer:
    """An application without commands yet."""
    return typer.Typer(cls=OneLineErrors, help=help, add_completion=False, rich_markup_mode=None)
