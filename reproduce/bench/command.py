"""`python -m reproduce bench`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TextIO

from reproduce.bench.figures import FIGURES, measured
from reproduce.bench.groups import groups
from reproduce.bench.measure import Entry, Skipped, interleave
from reproduce.bench.report import as_json, as_table
from reproduce.bench.workload import FULL, QUICK
from reproduce.progress import clock
from reproduce.run import check_writable, output, terminable, write


class Ticker:
    """A line a run, with the time that is left if the rest goes as fast."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total, self.stream = total, stream
        self.done, self.started = 0, time.monotonic()

    def __call__(self, what: Entry | Skipped) -> None:
        name = f"{what.group} {what.contestant}"
        if isinstance(what, Skipped):
            self.total -= what.runs
            self._say(f"{name}: not measured: {what.reason}")
            return
        self.done += 1
        timing = what.timing
        spent = time.monotonic() - self.started
        left = clock(spent / self.done * (self.total - self.done))
        speed = f"{1000 * timing.seconds_per_microbatch:.2f} ms a micro-batch"
        busy = f", {timing.utilization:.0%} busy" if timing.utilization is not None else ""
        at = f"[{self.done}/{self.total}, {left} left] round {what.round + 1}"
        self._say(f"{at} {name}: {speed}{busy}")

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


def run_bench(quick: bool, file: str | None) -> int:
    """Measure, print the table, write the JSON to `file` (`-`: standard output, and everything
    else to standard error). Returns the exit code.

    Raises:
        BadInput: `file` cannot be written.
    """
    if file not in (None, "-"):
        check_writable(Path(file))
    sizes = QUICK if quick else FULL
    with terminable(), output(to_error=file == "-") as stream:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        if load is not None and load > 0.5:
            warning = f"the machine is busy (load {load:.1f}): the numbers will be noise"
            print(f"warning: {warning}", file=sys.stderr, flush=True)
        todo = groups(sizes)
        total = sizes.rounds * sum(len(group.contestants) for group in todo)
        log = interleave(todo, sizes.rounds, Ticker(total, stream))
        results = [measured(figure, log) for figure in FIGURES]
        found = as_json(results, log, sizes, quick, load)
        print(as_table(found), file=stream, flush=True)
    if file is not None:
        write(found, file)
    return 0
