"""The table of tasks. A new task is one row here and one file beside it."""

from __future__ import annotations

from data.digits import Digits
from data.phrases import Phrases
from data.task import Task

TASKS: dict[str, type[Task]] = {"digits": Digits, "phrases": Phrases}
"""Name -> class; a class takes seed, batch_size, microbatches and options of its own by name."""
