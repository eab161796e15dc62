"""Messages between neighbouring workers: one of a kind a tick, posted without waiting.

Forward boundaries and recomputed ones (F, R) go downstream, gradients (B) upstream.

Both ends know every shape beforehand, so a message is one flat buffer of bytes without metadata:
a number (the update at which the run ends) and the members of the boundary. Sends and receives of
a tick are posted together and waited for at the next tick, so neither direction can block the
other, and workers need no barrier.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from models.shapes import TensorSpec
from models.unit import Boundary
from reproduce.engine.timeline import Timeline
from reproduce.plan import Exchange

_ALIGNMENT = 16


class PeerLost(RuntimeError):
    """A neighbour went away; the cause is to be found there."""


class Packet:
    """The layout of one kind of message."""

    def __init__(self, specs: Sequence[TensorSpec], device: torch.device) -> None:
        self.specs, self.device = specs, device
        self._starts = [_ALIGNMENT]
        for spec in specs:
            self._starts.append(-(-(self._starts[-1] + spec.nbytes) // _ALIGNMENT) * _ALIGNMENT)

    def empty(self) -> Tensor:
        return torch.empty(self._starts[-1], dtype=torch.uint8, device=self.device)

    def _view(self, buffer: Tensor, start: int, spec: TensorSpec) -> Tensor:
        return buffer[start : start + spec.nbytes].view(spec.dtype).view(spec.shape)

    def pack(self, number: int, boundary: Boundary | None) -> Tensor:
        """A buffer to send; without a boundary its members are left as they are."""
        buffer = self.empty()
        buffer[:8].view(torch.int64).fill_(number)
        if boundary is not None:
            members = zip(self._starts, self.specs, boundary, strict=False)
            for start, spec, tensor in members:
                self._view(buffer, start, spec).copy_(tensor)
        return buffer

    def unpack(self, buffer: Tensor) -> tuple[int, Boundary]:
        """(number, boundary); the boundary's members are views of the buffer."""
        number = int(buffer[:8].view(torch.int64).item())
        return number, tuple(
            self._view(buffer, start, spec).requires_grad_(spec.differentiable)
            for start, spec in zip(self._starts, self.specs, strict=False)
        )


class Arrived(NamedTuple):
    """What the last exchange brought."""

    boundaries: dict[str, Boundary]
    """By kind: F, R, B"""
    ends: list[int]
    """The updates at which the run ends, as told"""


class Transport:
    """A worker's connection to its neighbours; `entering` and `leaving` are its two boundaries."""

    def __init__(
        self,
        entering: Sequence[TensorSpec],
        leaving: Sequence[TensorSpec],
        device: torch.device,
        max_send_delay: float = 0.0,
    ) -> None:
        """`max_send_delay` (seconds) makes sends late at random, to test that it is harmless."""
        self.rank = dist.get_rank()
        self._forward_in, self._forward_out = Packet(entering, device), Packet(leaving, device)
        self._backward_in = Packet(_differentiable(leaving), device)
        self._backward_out = Packet(_differentiable(entering), device)
        self._max_send_delay = max_send_delay
        self._receives: list[tuple[str, dist.Work, Tensor]] = []
        self._sends: list[tuple[dist.Work, Tensor]] = []
        self.waited_s = 0.0
        """Seconds spent waiting for messages"""
        self.timeline: Timeline | None = None
        """Where these waits are written down"""

    def post(self, exchange: Exchange, end: int, sent: Mapping[str, Boundary]) -> None:
        """Post the messages of this tick, `sent` by kind. The buffers of the last tick's sends
        become free. Both ends post F before R, so that they meet their like."""
        self._wait_for_sends()
        if exchange.silent:
            return
        if self._max_send_delay and random.random() < 0.25:
            time.sleep(random.uniform(0.0, self._max_send_delay))
        ops: list[tuple[str, dist.P2POp]] = []

        def send(kind: str, packet: Packet, peer: int) -> None:
            ops.append(("", dist.P2POp(dist.isend, packet.pack(end, sent.get(kind)), peer)))

        def receive(kind: str, packet: Packet, peer: int) -> None:
            ops.append((kind, dist.P2POp(dist.irecv, packet.empty(), peer)))

        if exchange.send_forward is not None:
            send("F", self._forward_out, self.rank + 1)
        if exchange.send_recompute is not None:
            send("R", self._forward_out, self.rank + 1)
        if exchange.receive_backward is not None:
            receive("B", self._backward_in, self.rank + 1)
        if exchange.receive_forward is not None:
            receive("F", self._forward_in, self.rank - 1)
        if exchange.receive_recompute is not None:
            receive("R", self._forward_in, self.rank - 1)
        if exchange.send_backward is not None:
            send("B", self._backward_out, self.rank - 1)
        self._start(ops)

    def _start(self, ops: list[tuple[str, dist.P2POp]]) -> None:
        try:
            works = dist.batch_isend_irecv([op for _, op in ops])
        except RuntimeError as error:
            raise PeerLost(str(error)) from error
        if len(works) < len(ops):  # NCCL: one handle for the whole group
            works = works * len(ops)
        for (kind, op), work in zip(ops, works, strict=True):
            if kind:
                self._receives.append((kind, work, op.tensor))
            else:
                self._sends.append((work, op.tensor))

    def wait(self) -> Arrived:
        """Wait for what the last tick's exchange brings.

        Raises:
            PeerLost: a neighbour's process ended.
        """
        started = time.monotonic()
        found: dict[str, Boundary] = {}
        ends = []
        for kind, work, buffer in self._receives:
            _finish(work)
            packet = self._backward_in if kind == "B" else self._forward_in
            end, found[kind] = packet.unpack(buffer)
            ends.append(end)
        self._receives.clear()
        self._waited(started)
        return Arrived(found, ends)

    def _wait_for_sends(self) -> None:
        started = time.monotonic()
        for work, _ in self._sends:
            _finish(work)
        self._sends.clear()
        self._waited(started)

    def _waited(self, started: float) -> None:
        ended = time.monotonic()
        self.waited_s += ended - started
        if self.timeline is not None:
            self.timeline.waited(started, ended)

    def close(self) -> None:
        """Wait until everything sent has been taken."""
        self._wait_for_sends()


def _differentiable(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    return [spec for spec in specs if spec.differentiable]


def _finish(work: dist.Work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise PeerLost(str(error)) from error
