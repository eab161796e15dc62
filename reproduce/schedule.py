"""Who does what in each tick, and which weight version each pass reads. Pure arithmetic.

Stage i = 1..P, micro-batch m = 0, 1, ..., N micro-batches an update. The paper's tick schedule,
P = 3 (F forward, B backward, the number is m):

    tick      0    1    2    3    4    5     6     7
    stage 1   F0   F1   F2   F3   F4   F5B0  F6B1  F7B2
    stage 2        F0   F1   F2   F3B0 F4B1  F5B2  F6B3
    stage 3             F0   F1B0 F2B1 F3B2  F4B3  F5B4

Within a tick a stage's forward comes first, on weights read before that tick's backward is
applied, and stages depend on their neighbours' previous tick only. Everything else in the project
that needs a delay, a version or a number of micro-batches in flight asks a `Schedule`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple


class Op(NamedTuple):
    """One pass of one micro-batch through one stage."""

    kind: str
    """`F` or `B`"""
    stage: int
    microbatch: int


@dataclass(frozen=True)
class Schedule(ABC):
    """P stages, N micro-batches an update. Ticks and micro-batches count from 0, from empty."""

    stages: int
    microbatches: int

    @abstractmethod
    def forward_at(self, tick: int, stage: int) -> int | None:
        """The micro-batch whose forward stage i does in this tick; None or negative: none."""

    @abstractmethod
    def backward_at(self, tick: int, stage: int) -> int | None:
        """The micro-batch whose backward stage i does in this tick; None or negative: none."""

    @abstractmethod
    def ticks(self, microbatches: int) -> int:
        """Ticks from empty to empty for this many micro-batches."""

    @abstractmethod
    def gradients_between(self, stage: int) -> int:
        """Micro-batch gradients that reach stage i between F(m,i) and B(m,i)."""

    def forward_version(self, microbatch: int, stage: int) -> int:
        """Updates in the weights that F(m,i) reads: max(0, (m - gradients between) // N)."""
        return max(0, (microbatch - self.gradients_between(stage)) // self.microbatches)

    def backward_version(self, microbatch: int) -> int:
        """Updates in the weights that B(m,i) meets: m // N."""
        return microbatch // self.microbatches

    def tau(self, stage: int) -> Fraction:
        """Mean delay of the forward weights of stage i, in updates."""
        return Fraction(self.gradients_between(stage), self.microbatches)

    def in_flight(self, stage: int) -> int:
        """Most micro-batches whose activations stage i holds at once."""
        return self.gradients_between(stage) + 1

    def stash_versions(self, stage: int, steps: int) -> int:
        """Most old weight versions that PipeDream keeps on stage i in a run of `steps` updates.

        After update t (from 0) the micro-batches (t+1)N .. (t+1)N + between - 1 are in flight;
        the oldest read version ((t+1)N - between) // N, the newest no later one than t.
        """
        n, total = self.microbatches, steps * self.microbatches
        between = self.gradients_between(stage)
        most = 0
        for t in range(min(steps, 2 * (between // n + 2))):
            flying = range((t + 1) * n, min((t + 1) * n + between, total))
            most = max(most, len({self.forward_version(m, stage) for m in flying}))
        return most


class Ticks(Schedule):
    """The paper's schedule: one forward and one backward a tick, no flush.

    F(m,i) at tick m + i - 1 and B(m,i) at tick m + 2P - i: 2(P-i) + 1 gradients between.
    """

    def forward_at(self, tick: int, stage: int) -> int:
        return tick - stage + 1

    def backward_at(self, tick: int, stage: int) -> int:
        return tick - 2 * self.stages + stage

    def ticks(self, microbatches: int) -> int:
        return microbatches + 2 * self.stages - 1

    def gradients_between(self, stage: int) -> int:
        return 2 * (self.stages - stage) + 1


class OneForwardOneBackward(Schedule):
    """`1f1b`: forward and backward alternate, no flush, one pass a (half as long) tick.

    F(m,i) at tick 2m + i - 1 and B(m,i) at tick 2m + 2P - i: P - i gradients between.
    """

    def forward_at(self, tick: int, stage: int) -> int | None:
        m, odd = divmod(tick - stage + 1, 2)
        return None if odd else m

    def backward_at(self, tick: int, stage: int) -> int | None:
        m, odd = divmod(tick - 2 * self.stages + stage, 2)
        return None if odd else m

    def ticks(self, microbatches: int) -> int:
        return 2 * (microbatches + self.stages - 1)

    def gradients_between(self, stage: int) -> int:
        return self.stages - stage


class GPipe(Schedule):
    """All forwards of a mini-batch, then all backwards, then a flush: no delay.

    With t = m // N and j = m mod N, F(m,i) at tick 2t(N+P-1) + j + i - 1 and
    B(m,i) at tick (2t+1)(N+P-1) + j + P - i.
    """

    @property
    def _phase(self) -> int:
        return self.microbatches + self.stages - 1

    def _microbatch(self, tick: int, hops: int, backward: bool) -> int | None:
        phase, within = divmod(tick, self._phase)
        step, is_backward = divmod(phase, 2)
        j = within - hops
        if bool(is_backward) != backward or not 0 <= j < self.microbatches:
            return None
        return step * self.microbatches + j

    def forward_at(self, tick: int, stage: int) -> int | None:
        return self._microbatch(tick, stage - 1, backward=False)

    def backward_at(self, tick: int, stage: int) -> int | None:
        return self._microbatch(tick, self.stages - stage, backward=True)

    def ticks(self, microbatches: int) -> int:
        return 2 * self._phase * (-(-microbatches // self.microbatches))

    def gradients_between(self, stage: int) -> int:
        return 0

    def forward_version(self, microbatch: int, stage: int) -> int:
        return microbatch // self.microbatches

    def in_flight(self, stage: int) -> int:
        return self.microbatches

    def stash_versions(self, stage: int, steps: int) -> int:
        return 0


SCHEDULES: dict[str, type[Schedule]] = {
    "gpipe": GPipe,
    "ticks": Ticks,
    "1f1b": OneForwardOneBackward,
}


def gpipe_utilization(devices: int, microbatches: int) -> float:
    """N / (N + K - 1): busy share of K devices under GPipe; asynchronous methods have 1."""
    return microbatches / (microbatches + devices - 1)


class Exchange(NamedTuple):
    """Micro-batches whose messages a worker sends and receives in one tick; None: no message."""

    send_forward: int | None
    receive_forward: int | None
    send_backward: int | None
    receive_backward: int | None

    @property
    def silent(self) -> bool:
        return all(m is None for m in self)


@dataclass(frozen=True)
class WorkerPlan:
    """A worker's share of a schedule: its stages first..last, for so many micro-batches.

    What is sent in a tick was computed in it and is used in the next, so both ends of every
    message know from the plan alone that it comes.
    """

    schedule: Schedule
    first: int
    last: int
    total: int

    def _pass(self, kind: str, tick: int, stage: int) -> int | None:
        at = self.schedule.forward_at if kind == "F" else self.schedule.backward_at
        m = at(tick, stage) if 1 <= stage <= self.schedule.stages else None
        return m if m is not None and 0 <= m < self.total else None

    def ops(self, tick: int) -> tuple[list[Op], list[Op]]:
        """What the worker does in this tick: (what a neighbour waits for, the rest).

        Every order is right that keeps F before B in a stage: no stage of a tick needs another.
        """
        edges = dict.fromkeys([("F", self.last), ("F", self.first), ("B", self.first)])
        rest = [(kind, i) for i in range(self.first + 1, self.last) for kind in "FB"]
        rest += [("B", self.last)] if self.last != self.first else []

        def found(passes: Iterable[tuple[str, int]]) -> list[Op]:
            pairs = ((kind, stage, self._pass(kind, tick, stage)) for kind, stage in passes)
            return [Op(kind, stage, m) for kind, stage, m in pairs if m is not None]

        return found(edges), found(rest)

    def exchange(self, tick: int) -> Exchange:
        """The messages of this tick, after the first part of its `ops`."""
        down, up = self.last < self.schedule.stages, self.first > 1
        return Exchange(
            send_forward=self._pass("F", tick, self.last) if down else None,
            receive_forward=self._pass("F", tick, self.first - 1),
            send_backward=self._pass("B", tick, self.first) if up else None,
            receive_backward=self._pass("B", tick, self.last + 1),
        )
