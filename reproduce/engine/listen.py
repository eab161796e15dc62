"""Starts the processes of a run, hears what they tell until all have ended, and ends them all.

Workers are processes of torch's own launcher, which sees the first that fails and ends the rest.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from torch import multiprocessing as mp
from torch.multiprocessing.spawn import ProcessContext, ProcessException, start_processes

from reproduce.engine.process import Work, worker_main
from reproduce.engine.report import SLOTS, Done, Failed, Loss, Message, Snapshot, last_seen
from reproduce.job import Job, WorkerFailed

START_METHOD = "forkserver"
"""Imports torch once for all the runs of a grid, and forks before any thread or device exists"""
_GRACE_S = 2.0
"""Seconds a worker gets to end by itself, then again before it is killed"""

Hear = Callable[[Loss | Snapshot], None]


def run_workers(job: Job, world: int, work: Work, settings: object, hear: Hear) -> dict[int, Done]:
    """Run `work(rank, settings, report)` in `world` processes; their results by rank.

    `hear` is told what they say meanwhile, those of one worker in order. However this ends, no
    process is left.

    Raises:
        WorkerFailed: a worker died or raised.
    """
    context = mp.get_context(START_METHOD)
    task = getattr(job.task, "func", job.task)
    preload = [worker_main.__module__, "torch._dynamo", work.__module__, task.__module__]
    context.set_forkserver_preload(preload)
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    writers = [writer for _, writer in pipes]
    board = context.RawArray("q", SLOTS * world)
    processes: ProcessContext = start_processes(  # type: ignore[no-untyped-call]
        worker_main,
        (work, settings, writers, board),
        world,
        join=False,
        start_method=START_METHOD,
    )
    try:
        for writer in writers:
            writer.close()
        return _Listener(world, processes, board, hear).listen([reader for reader, _ in pipes])
    finally:
        _end(processes.processes)


class _Listener:
    """Takes what the workers tell."""

    def __init__(self, world: int, processes: ProcessContext, board: Any, hear: Hear) -> None:
        self.world, self.processes, self.board, self.hear = world, processes, board, hear
        self._failed: dict[int, Failed] = {}
        self._done: dict[int, Done] = {}
        self._left: int | None = None
        """A worker that ended without a word, as if it had done its work"""

    def listen(self, readers: list[Connection]) -> dict[int, Done]:
        """Until every pipe has ended.

        Raises:
            WorkerFailed: a worker died or raised.
        """
        first, ended, rank_of = 0, False, {reader: r for r, reader in enumerate(readers)}
        while readers or not ended:
            for ready in wait([*readers, *self.processes.sentinels], timeout=0.2):
                if ready in readers and not self._take(ready):
                    readers.remove(ready)
                    self._see_off(rank_of[ready])
            if self._left is not None:
                _end(self.processes.processes)
                break
            try:
                ended = self.processes.join(timeout=0, grace_period=_GRACE_S)
            except ProcessException as error:
                first = error.error_index
                break
        for reader in readers:
            while self._take(reader):
                pass
        if len(self._done) < self.world:
            raise self._failure(first)
        return self._done

    def _take(self, reader: Any) -> bool:
        """Take one message; False at the end of the pipe."""
        try:
            message: Message = reader.recv()
        except (EOFError, OSError):
            return False
        match message:
            case Failed(rank):
                self._failed[rank] = message
            case Done(rank):
                self._done[rank] = message
            case _:
                self.hear(message)
        return True

    def _see_off(self, rank: int) -> None:
        """Worker `rank` says no more. One that fails is seen by the launcher, from its exit code;
        one that leaves without a word and with exit code 0 is not, and others may wait for it."""
        if rank not in self._done and rank not in self._failed:
            process = self.processes.processes[rank]
            process.join(_GRACE_S)
            if not process.exitcode:
                self._left = rank

    def _failure(self, first: int) -> WorkerFailed:
        """The first cause: a signal from outside, an error that is not about a lost peer, or an
        end without a word."""
        codes = [process.exitcode or 0 for process in self.processes.processes]
        killed = [r for r, code in enumerate(codes) if code < 0 and code != -signal.SIGTERM]
        raised = [rank for rank, failed in self._failed.items() if not failed.secondary]
        silent = [
            rank
            for rank, code in enumerate(codes)
            if code >= 0 and rank not in self._failed and rank not in self._done
        ]
        found = killed or raised or silent or [first]
        rank = found[0] if self._left is None else self._left
        cause = ""
        if rank in self._failed:
            how, cause = "raised an error", "\n" + self._failed[rank].text
        elif codes[rank] < 0:
            how = f"was ended by {signal.Signals(-codes[rank]).name}"
        else:
            how = f"ended with exit code {codes[rank]}"
        doing = last_seen(self.board, rank)
        return WorkerFailed(f"worker {rank} of {self.world} {how} while {doing}{cause}")


def _end(processes: list[Any]) -> None:
    """No process is left."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(_GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
