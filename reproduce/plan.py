"""A worker's share of a schedule: what it does in each tick, and the messages that follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from reproduce.schedule import Schedule


class Op(NamedTuple):
    """One pass of one micro-batch through one stage."""

    kind: str
    """`F`, `R` or `B`"""
    stage: int
    microbatch: int


class Exchange(NamedTuple):
    """Micro-batches whose messages a worker sends and receives in one tick; None: no message."""

    send_forward: int | None
    receive_forward: int | None
    send_backward: int | None
    receive_backward: int | None
    send_recompute: int | None
    receive_recompute: int | None

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
        schedule = self.schedule
        at = {"F": schedule.forward_at, "R": schedule.recompute_at, "B": schedule.backward_at}
        m = at[kind](tick, stage) if 1 <= stage <= schedule.stages else None
        return m if m is not None and 0 <= m < self.total else None

    def ops(self, tick: int) -> tuple[list[Op], list[Op]]:
        """What the worker does in this tick: (what a neighbour waits for, the rest).

        Every order is right that keeps F, R, B in a stage: no stage of a tick needs another.
        """
        sides = [(kind, stage) for stage in (self.last, self.first) for kind in "FR"]
        edges = dict.fromkeys([*sides, ("B", self.first)])
        rest = [(kind, i) for i in range(self.first + 1, self.last) for kind in "FRB"]
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
            send_recompute=self._crossing(tick, self.last),
            receive_recompute=self._crossing(tick, self.first - 1),
        )

    def _crossing(self, tick: int, stage: int) -> int | None:
        """The micro-batch whose recomputation leaves a stage in this tick for the next one."""
        if not 1 <= stage < self.schedule.stages or stage == self.schedule.segment_of(stage)[-1]:
            return None
        return self._pass("R", tick, stage)
