"""Input that is refused before any work starts."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class BadInput(ValueError):
    """One line: where, what is wrong, and the mend. The command line exits with 2 on it."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def choose(wrong: str, known: Iterable[str]) -> str:
    """The mend for a misspelt name: the closest known ones, or all of them."""
    names = sorted(known)
    return f"choose {' or '.join(get_close_matches(wrong, names, n=3, cutoff=0.5) or names)}"
