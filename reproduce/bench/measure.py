"""Interleaved rounds and what they say: medians of paired runs with their spread.

A machine's speed drifts. So things to compare are never timed one block after the other: a round
runs each of them once, the next round runs them in the opposite order, and a ratio is taken
within a round.

    round 0: a b c    round 1: c b a    round 2: a b c    ...
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


class Unavailable(RuntimeError):
    """This cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Timing:
    """One run: seconds in its training loop, without start-up and building."""

    seconds: float
    steps: int
    microbatches: int
    """Micro-batches in all"""
    losses: list[float]
    """Of the first steps, in order"""
    utilization: float | None = None

    @property
    def seconds_per_microbatch(self) -> float:
        return self.seconds / self.microbatches


@dataclass(frozen=True)
class Contestant:
    """Something to time. The first one of a group sets the losses that the others must show."""

    name: str
    time: Callable[[], Timing]
    same_losses: int = 3
    """First steps whose losses must equal those of the group's first; with stale weights, 1"""


@dataclass(frozen=True)
class Group:
    """Contestants that are timed side by side."""

    name: str
    contestants: Sequence[Contestant]


@dataclass(frozen=True)
class Entry:
    """One line of the log, in the order of execution."""

    group: str
    round: int
    contestant: str
    timing: Timing


@dataclass(frozen=True)
class Skipped:
    """A contestant that cannot be measured, and the runs that fall away with it."""

    group: str
    contestant: str
    reason: str
    runs: int


@dataclass
class Log:
    """All that was run, and why some things were not."""

    entries: list[Entry]
    missing: dict[tuple[str, str], str]
    """(group, contestant) -> reason"""

    def timings(self, group: str, contestant: str) -> list[Timing]:
        """By round. Raises Unavailable with the reason where there are none."""
        reason = self.missing.get((group, contestant))
        if reason is not None:
            raise Unavailable(reason)
        mine = [e for e in self.entries if (e.group, e.contestant) == (group, contestant)]
        return [entry.timing for entry in sorted(mine, key=lambda entry: entry.round)]


def interleave(
    groups: Sequence[Group], rounds: int, tell: Callable[[Entry | Skipped], None]
) -> Log:
    """Run every contestant of every group once a round, forwards and backwards in turn."""
    log = Log([], {})
    for group in groups:
        expected: list[float] = []
        for number in range(rounds):
            for one in group.contestants[:: -1 if number % 2 else 1]:
                if (group.name, one.name) in log.missing:
                    continue
                try:
                    timing = one.time()
                    expected = expected or timing.losses
                    _require_same_work(one, timing.losses, expected)
                except Unavailable as error:
                    log.missing[group.name, one.name] = str(error)
                    tell(Skipped(group.name, one.name, str(error), rounds - number))
                    continue
                log.entries.append(Entry(group.name, number, one.name, timing))
                tell(log.entries[-1])
    return log


def _require_same_work(one: Contestant, losses: list[float], expected: list[float]) -> None:
    """A faster contestant must not be faster by doing something else."""
    mine, theirs = (torch.tensor(each[: one.same_losses]) for each in (losses, expected))
    if mine.shape != theirs.shape or not torch.allclose(mine, theirs, rtol=1e-5):
        raise Unavailable(
            f"{one.name} computes something else: its first losses are {mine.tolist()} "
            f"instead of {theirs.tolist()}"
        )


@dataclass(frozen=True)
class Spread:
    """The values of the rounds, summarised."""

    median: float
    q1: float
    q3: float
    min: float
    max: float
    values: list[float]


def spread(values: Sequence[float]) -> Spread:
    """Median, quartiles (inclusive method) and range of at least one value."""
    values = list(values)
    once = len(values) == 1
    q1, median, q3 = values * 3 if once else statistics.quantiles(values, method="inclusive")
    return Spread(median, q1, q3, min(values), max(values), values)
