"""What a worker tells the process that started it, and the board that outlives it.

Results go through a pipe of the worker's own: nobody else holds a lock or an end of it, so a
killed worker cannot leave the others waiting. What a worker is doing stands in shared memory,
where it can still be read when the worker is gone. Tensors travel as arrays, by value.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from ctypes import Array, c_longlong
from enum import IntEnum
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from reproduce.job import Memory, StageDelay
from reproduce.trace import TraceEvent


class Doing(IntEnum):
    STARTING = 0
    WAITING = 1
    FORWARD = 2
    BACKWARD = 3
    FINISHED = 4
    RECOMPUTATION = 5


class Loss(NamedTuple):
    """Mean training loss of the mini-batch of `step` (from 0)."""

    step: int
    value: float


class Snapshot(NamedTuple):
    """A stage at version `steps`: its weights after so many updates, and the buffers (running
    statistics) after the forward passes of exactly the micro-batches that made them."""

    steps: int
    stage: int
    weights: list[np.ndarray[Any, Any]]
    buffers: list[np.ndarray[Any, Any]]


class Failed(NamedTuple):
    """A worker's exception; `secondary` where it is about a neighbour that went away."""

    rank: int
    text: str
    secondary: bool


class Done(NamedTuple):
    """A worker's results at the end of the run."""

    rank: int
    stages: list[Snapshot]
    delays: list[StageDelay]
    memory: Memory
    utilization: float
    loop_s: float
    drawn_delays: Mapping[int, int] = {}
    """Delay -> how many updates had it (lock-free workers)"""
    filling_delays: Mapping[int, int] = {}
    """Those of them that came before steady state"""
    trace: Sequence[TraceEvent] = ()
    """Times of the machine's monotonic clock, which all its processes share"""


Message = Loss | Snapshot | Failed | Done

SLOTS = 3
"""Numbers a worker has on the board: what it is doing, stage, micro-batch"""


class Report:
    """A worker's side of it."""

    def __init__(self, rank: int, connection: Connection, board: Array[c_longlong]) -> None:
        self._connection, self._board, self._at = connection, board, SLOTS * rank
        self.told_s = 0.0
        """Seconds spent handing over results"""

    def tell(self, message: Message) -> None:
        started = time.perf_counter()
        self._connection.send(message)
        self.told_s += time.perf_counter() - started

    def doing(self, what: Doing, stage: int = 0, microbatch: int = 0) -> None:
        board, at = self._board, self._at
        board[at], board[at + 1], board[at + 2] = what, stage, microbatch


def last_seen(board: Array[c_longlong], rank: int) -> str:
    """What the worker wrote last about itself, as words."""
    what, stage, microbatch = board[SLOTS * rank : SLOTS * (rank + 1)]
    match Doing(what):
        case Doing.FORWARD | Doing.RECOMPUTATION | Doing.BACKWARD:
            where = f"stage {stage}, " if stage else ""
            return f"in the {Doing(what).name.lower()} of {where}micro-batch {microbatch}"
        case Doing.WAITING:
            return f"waiting for a neighbour's message at stage {stage}"
        case Doing.STARTING:
            return "starting"
        case Doing.FINISHED:
            return "already finished"
