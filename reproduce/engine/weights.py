"""The weights of one stage: the live ones, and the old versions somebody still reads."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class WeightVersions:
    """Version t is what the stage's weights were after t updates; the newest is the live one."""

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self.live = list(weights)
        self.newest = 0
        self.peak_bytes = 0
        """Most bytes of old versions held at once"""
        self._old: dict[int, list[Tensor]] = {}
        self._bytes = sum(w.nbytes for w in self.live)

    def __getitem__(self, version: int) -> Sequence[Tensor]:
        return self.live if version == self.newest else self._old[version]

    def stash(self) -> None:
        """Keep a copy of the live version: an update is about to change it."""
        self._old[self.newest] = [w.detach().clone() for w in self.live]
        self.peak_bytes = max(self.peak_bytes, len(self._old) * self._bytes)

    def drop_before(self, version: int) -> None:
        """Forget the versions older than this one."""
        while self._old and next(iter(self._old)) < version:
            del self._old[next(iter(self._old))]
