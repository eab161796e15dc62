"""A worker: a contiguous block of stages, tick after tick.

    wait for the messages of the last tick
    do the passes that a neighbour waits for, post this tick's messages
    do the updates that are due and the other passes while they travel

Follow one micro-batch: `forward` takes the boundary out of the inbox, the stage computes, `_leave`
puts the result into the inbox of the next stage or hands it to the transport; `backward` is the
same the other way round. `recompute` repeats the forward passes of a segment in between.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from data.task import Task
from models.unit import Boundary
from reproduce.engine.flights import Keep
from reproduce.engine.report import Doing, Loss, Report
from reproduce.engine.stage import PipelineStage
from reproduce.engine.timeline import Timeline
from reproduce.engine.transport import Transport
from reproduce.job import Job, place
from reproduce.phases import Phase, phases, recomputes_exactly
from reproduce.plan import Op, WorkerPlan
from reproduce.schedule import GPipe


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
        self._passes = {"F": self._forward, "R": self._recompute, "B": self._backward}
        self.wall_s = 0.0
        self.timeline = Timeline(rank, self.first) if job.trace else None
        if transport is not None:
            transport.timeline = self.timeline

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
                self.transport.post(exchange, self.end, sent)
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
        for kind, stage, m in (
            ("F", self.first, exchange.receive_forward),
            ("R", self.first, exchange.receive_recompute),
            ("B", self.last, exchange.receive_backward),
        ):
            if m is not None:
                self._inbox[kind, stage, phase.first_microbatch + m] = arrived.boundaries[kind]

    def _do(self, op: Op, phase: Phase, sent: dict[str, Boundary]) -> None:
        """One op of the plan: a pass through one stage, or (GPipe) through the whole block."""
        m = phase.first_microbatch + op.microbatch
        if m >= self.end * self.job.microbatches:
            return
        if phase.synchronous and op.kind == "B":
            self._backward_block(m, phase, sent)
            return
        stages = range(self.first, self.last + 1) if phase.synchronous else (op.stage,)
        for stage in stages:
            self._pass(op.kind, stage, m, phase, sent)

    def _pass(self, kind: str, stage: int, m: int, phase: Phase, sent: dict[str, Boundary]) -> None:
        """One pass of one micro-batch through one stage: F, R or B."""
        run = self._passes[kind]
        if self.timeline is None:
            run(stage, m, phase, sent)
            return
        with self.timeline.event(kind, stage, m):
            run(stage, m, phase, sent)

    def _backward_block(self, m: int, phase: Phase, sent: dict[str, Boundary]) -> None:
        """GPipe: segment by segment, each recomputed right before its backward passes."""
        stage = self.last
        while stage >= self.first:
            segment = self._segment(stage, phase)
            if phase.schedule.recomputes(stage):
                for i in segment:
                    self._pass("R", i, m, phase, sent)
            for i in reversed(segment):
                self._pass("B", i, m, phase, sent)
            stage = segment[0] - 1

    def _segment(self, stage: int, phase: Phase) -> range:
        """The segment of a stage; GPipe cuts it at the ends of the block, since nothing depends on
        where a synchronous recomputation starts."""
        segment = phase.schedule.segment_of(stage)
        if not phase.synchronous:
            return segment
        return range(max(segment[0], self.first), min(segment[-1], self.last) + 1)

    def _forward(self, stage: int, m: int, phase: Phase, sent: dict[str, Boundary]) -> None:
        self.report.doing(Doing.FORWARD, stage, m)
        target = None
        if stage in (1, self.job.stages):
            batch = self.task.microbatch(m)
            if stage == 1:
                self._inbox["F", 1, m] = place(batch.inputs, self.job)
            if stage == self.job.stages:
                target = batch.target.to(self.job.device)
        keep = Keep.GRAPH
        if phase.schedule.recomputes(stage):
            keep = Keep.INPUT if stage == self._segment(stage, phase)[0] else Keep.NOTHING
        boundary = self.stages[stage].forward(m, self._inbox.pop(("F", stage, m)), target, keep)
        if stage == self.job.stages:
            self._collect_loss(m, boundary)
        else:
            self._leave("F", stage + 1, m, boundary, sent)

    def _recompute(self, stage: int, m: int, phase: Phase, sent: dict[str, Boundary]) -> None:
        self.report.doing(Doing.RECOMPUTATION, stage, m)
        segment = self._segment(stage, phase)
        inputs = None if stage == segment[0] else self._inbox.pop(("R", stage, m))
        target = None
        if stage == self.job.stages:
            target = self.task.microbatch(m).target.to(self.job.device)
        exact = recomputes_exactly(self.job, phase.schedule)
        boundary = self.stages[stage].recompute(m, inputs, target, exact)
        if stage != segment[-1]:
            self._leave("R", stage + 1, m, boundary, sent)

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
            self._update_stage(stage, phase)
            snapshot = stage.due_snapshot()
            if snapshot is not None:
                self.report.tell(snapshot)
        self._due.clear()

    def _update_stage(self, stage: PipelineStage, phase: Phase) -> None:
        version = stage.versions.newest
        k = None if phase.warmup else version - phase.first_step
        if self.timeline is None:
            stage.update(k)
            return
        with self.timeline.event("U", stage.stage, (version + 1) * self.job.microbatches - 1):
            stage.update(k)

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
