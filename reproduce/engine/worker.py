"""A worker: a contiguous block of stages, tick after tick.

    wait for the messages of the last tick
    do the passes that a neighbour waits for, post this tick's messages
    do the updates that are due and the other passes while they travel

Follow one micro-batch: `forward` takes the boundary out of the inbox, the stage computes, `_leave`
puts the result into the inbox of the next stage or hands it to the transport; `backward` is the
same the other way round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from data.task import Task
from models.unit import Boundary
from reproduce.engine.report import Doing, Loss, Report
from reproduce.engine.stage import PipelineStage
from reproduce.engine.transport import Transport
from reproduce.job import Job, place
from reproduce.phases import Phase, phases
from reproduce.schedule import GPipe, Op, WorkerPlan


class Worker:
    """Runs a job on its own stages; `rank` counts from 0 along the pipeline of `world` workers."""

    def __init__(
        self,
        job: Job,
        rank: int,
        world: int,
        stages: Sequence[PipelineStage],
        task: Task,
        transport: Transport | None,
        report: Report,
    ) -> None:
        self.job, self.rank, self.world = job, rank, world
        self.stages = {stage.stage: stage for stage in stages}
        self.first, self.last = stages[0].stage, stages[-1].stage
        self.task, self.transport, self.report = task, transport, report
        self.end = job.steps
        """The run ends after so many updates; a divergence brings it forward"""
        self._inbox: dict[tuple[str, int, int], Boundary] = {}
        self._loss: list[Boundary] = []
        self._due: list[PipelineStage] = []
        self.wall_s = 0.0

    def run(self) -> None:
        """All phases, from an empty pipeline to an empty pipeline."""
        started = time.perf_counter()
        for phase in phases(self.job):
            if phase.first_step < self.end:
                self._run_phase(phase)
        if self.transport is not None:
            self.transport.close()
        self.wall_s = time.perf_counter() - started

    def _plan(self, phase: Phase, steps: int) -> WorkerPlan:
        """GPipe is a schedule of workers (a block is one stage), the others one of stages."""
        total = steps * self.job.microbatches
        if phase.synchronous:
            of_workers = GPipe(self.world, self.job.microbatches)
            return WorkerPlan(of_workers, self.rank + 1, self.rank + 1, total)
        return WorkerPlan(phase.schedule, self.first, self.last, total)

    def _run_phase(self, phase: Phase) -> None:
        messages = self._plan(phase, phase.steps)
        tick = 0
        while True:
            self._receive(messages, phase, tick - 1)
            plan = self._plan(phase, min(phase.steps, self.end - phase.first_step))
            if tick >= plan.schedule.ticks(plan.total):
                break
            edges, rest = plan.ops(tick)
            sent: dict[str, Boundary] = {}
            for op in edges:
                self._do(op, phase, sent)
            if self.transport is not None:
                exchange = messages.exchange(tick)
                self.transport.post(exchange, self.end, sent.get("F"), sent.get("B"))
            self._update(phase)
            for op in rest:
                self._do(op, phase, sent)
            self._update(phase)
            tick += 1

    def _receive(self, messages: WorkerPlan, phase: Phase, tick: int) -> None:
        """Into the inbox with what was posted in `tick`."""
        if self.transport is None or tick < 0:
            return
        self.report.doing(Doing.WAITING, self.first)
        arrived = self.transport.wait()
        self.end = min([self.end, *arrived.ends])
        exchange = messages.exchange(tick)
        if arrived.forward is not None and exchange.receive_forward is not None:
            m = phase.first_microbatch + exchange.receive_forward
            self._inbox["F", self.first, m] = arrived.forward
        if arrived.backward is not None and exchange.receive_backward is not None:
            m = phase.first_microbatch + exchange.receive_backward
            self._inbox["B", self.last, m] = arrived.backward

    def _do(self, op: Op, phase: Phase, sent: dict[str, Boundary]) -> None:
        """One op of the plan: a pass through one stage, or (GPipe) through the whole block."""
        m = phase.first_microbatch + op.microbatch
        if m >= self.end * self.job.microbatches:
            return
        block = range(self.first, self.last + 1)
        stages = block if phase.synchronous else (op.stage,)
        for stage in stages if op.kind == "F" else reversed(stages):
            if op.kind == "F":
                self._forward(stage, m, sent)
            else:
                self._backward(stage, m, phase, sent)

    def _forward(self, stage: int, m: int, sent: dict[str, Boundary]) -> None:
        self.report.doing(Doing.FORWARD, stage, m)
        target = None
        if stage in (1, self.job.stages):
            batch = self.task.microbatch(m)
            if stage == 1:
                self._inbox["F", 1, m] = place(batch.inputs, self.job)
            if stage == self.job.stages:
                target = batch.target.to(self.job.device)
        boundary = self.stages[stage].forward(m, self._inbox.pop(("F", stage, m)), target)
        if stage == self.job.stages:
            self._collect_loss(m, boundary)
        else:
            self._leave("F", stage + 1, m, boundary, sent)

    def _backward(self, stage: int, m: int, phase: Phase, sent: dict[str, Boundary]) -> None:
        self.report.doing(Doing.BACKWARD, stage, m)
        gradients = None if stage == self.job.stages else self._inbox.pop(("B", stage, m))
        gradients = self.stages[stage].backward(m, gradients, not phase.warmup)
        if (m + 1) % self.job.microbatches == 0:
            self._due.append(self.stages[stage])
        if stage > 1:
            self._leave("B", stage - 1, m, gradients, sent)

    def _update(self, phase: Phase) -> None:
        """The updates that this tick's backward passes made due: no neighbour waits for them."""
        for stage in self._due:
            stage.update(None if phase.warmup else stage.versions.newest - phase.first_step)
            snapshot = stage.due_snapshot()
            if snapshot is not None:
                self.report.tell(snapshot)
        self._due.clear()

    def _leave(
        self, kind: str, stage: int, m: int, boundary: Boundary, sent: dict[str, Boundary]
    ) -> None:
        """A boundary on its way to `stage`, which is this worker's or a neighbour's."""
        if stage in self.stages:
            self._inbox[kind, stage, m] = boundary
        else:
            sent[kind] = boundary

    def _collect_loss(self, m: int, part: Boundary) -> None:
        """The N losses / N of a mini-batch add up to its mean loss."""
        self._loss.append(part)
        if (m + 1) % self.job.microbatches:
            return
        total = sum((value for (value,) in self._loss), start=self._loss[0][0].new_zeros(()))
        self._loss.clear()
        loss = Loss(m // self.job.microbatches, total.item())
        self.report.tell(loss)
        if not loss.value <= self.job.divergence_loss:
            self.end = loss.step + 1

    def utilization(self) -> float:
        """Busy time over wall time of this worker."""
        waited = self.transport.waited_s if self.transport is not None else 0.0
        return 1.0 - (waited + self.report.told_s) / self.wall_s if self.wall_s else 1.0
