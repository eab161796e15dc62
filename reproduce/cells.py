"""One row of a table: a network, a method and checked settings."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from models.unit import Network
from reproduce.errors import BadInput, choose
from reproduce.methods import Method
from reproduce.optimization import optimizer
from reproduce.settings import PLACEMENT
from reproduce.workloads import Workload, workload


@dataclass(frozen=True)
class Cell:
    """One row of a table, checked."""

    table: str
    network_name: str
    method: Method
    settings: Workload
    variant: str = ""
    """Which point of which sweep this is, as `depth:stages=50,lr=0.005`; empty outside sweeps"""
    seeds: int = 1
    """How many runs a grid makes of it, at `settings.seed` and the numbers after it"""

    @property
    def name(self) -> str:
        variant = f"@{self.variant}" if self.variant else ""
        return f"{self.network_name}{variant}/{self.method.name}"

    @property
    def title(self) -> str:
        """The name of one run: with its seed where there are several."""
        several = self.seeds > 1 or self.settings.seed > 0
        return f"{self.name} seed {self.settings.seed}" if several else self.name

    @property
    def sweep(self) -> str:
        return self.variant.partition(":")[0]

    def with_seed(self, seed: int) -> Cell:
        """The same cell at another seed."""
        return replace(self, settings=self.settings.model_copy(update={"seed": seed}))

    def network(self) -> Network:
        return self.settings.network(self.settings.samples())

    @property
    def workers(self) -> int:
        """Processes that train: K_w, or 1 under the reference engine."""
        if self.method.lockfree:
            return self.settings.lockfree_workers
        return self.settings.workers if self.settings.engine == "pipeline" else 1

    @property
    def config_hash(self) -> str:
        """Digest of all that decides the result: settings that are not at their default, less those
        that this method never reads and those that only place the run."""
        ignored = PLACEMENT | unread(self.method)
        settings = self.settings.model_dump(exclude_defaults=True, exclude=set(ignored))
        rule = {
            field.name: _plain(getattr(self.method, field.name))
            for field in fields(Method)
            if field.name != "summary" and getattr(self.method, field.name) != field.default
        }
        text = json.dumps([self.network_name, rule, settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def unread(method: Method) -> frozenset[str]:
    """Settings that this method never reads."""
    keys: set[str] = set() if method.warmup else {"sync_steps"}
    if not (method.learning_rate or method.correction or method.delays):
        keys |= {"annealing_steps", "decay"}
    if not method.learning_rate:
        keys |= {"t1_exponent", "t1_floor"}
    if method.synchronous or method.lockfree:
        keys.add("schedule")
    keys.add("workers" if method.lockfree else "lockfree_workers")
    return frozenset(keys)


def make(
    table: str,
    network: str,
    method: Method,
    settings: Mapping[str, Any],
    variant: str = "",
    seeds: int = 1,
) -> Cell:
    """A checked cell. Raises BadInput that names the cell, the key and the mend."""
    name = f"{network}{variant and '@'}{variant}/{method.name}"
    try:
        kind = workload(network)
        try:
            cell = Cell(table, network, method, kind(**settings), variant, seeds)
        except ValidationError as error:
            raise BadInput(explain(error, kind)) from error
        check(cell)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error
    return cell


def explain(error: ValidationError, kind: type[BaseModel]) -> str:
    """The first thing pydantic found, in one line with its mend; a misspelt key before all."""
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    key, value = ".".join(map(str, first["loc"])), first["input"]
    if first["type"] == "extra_forbidden":
        return f"{key} = {value!r}: unknown setting; {choose(key, kind.model_fields)}"
    if first["type"] == "missing":
        return f"{key}: missing; set it for this network"
    message = first["msg"].replace("Input should", "it should")
    return f"{key} = {value!r}: {message[0].lower()}{message[1:]}"


def check(cell: Cell) -> None:
    """What no single setting shows. Raises BadInput naming the key and the mend."""
    s, method = cell.settings, cell.method
    if s.batch_size % s.microbatches:
        fit = [n for n in range(1, s.batch_size + 1) if s.batch_size % n == 0]
        below = [n for n in fit if n < s.microbatches][-1:]
        nearest = below + [n for n in fit if n > s.microbatches][:1]
        raise BadInput(
            f"microbatches = {s.microbatches}: does not divide batch_size = {s.batch_size}; "
            f"choose {' or '.join(map(str, nearest))}"
        )
    try:
        units = len(cell.network())
    except ValueError as error:
        raise BadInput(str(error)) from error
    if s.stages > units:
        raise BadInput(
            f"stages = {s.stages}: {cell.network_name} has {units} units; choose at most {units}"
        )
    if s.workers > s.stages and not method.lockfree:
        raise BadInput(
            f"workers = {s.workers}: more than stages = {s.stages}; choose at most {s.stages}"
        )
    if method.warmup and s.sync_steps > s.steps:
        raise BadInput(
            f"sync_steps = {s.sync_steps}: more than steps = {s.steps}; choose at most {s.steps}"
        )
    if s.segment > s.stages:
        raise BadInput(
            f"segment = {s.segment}: more than stages = {s.stages}; choose at most {s.stages}"
        )
    if s.segment and s.schedule == "1f1b" and not method.synchronous:
        raise BadInput(
            f"segment = {s.segment}: the 1f1b schedule has no recomputation; "
            "set schedule to ticks or segment to 0"
        )
    if s.measure_discrepancy and s.engine != "reference":
        raise BadInput(
            "measure_discrepancy = true: only the reference engine keeps the weights to compare; "
            "choose --engine reference"
        )
    check_engine(s, method)
    for key, reader in (
        ("annealing_steps", method.learning_rate),
        ("decay", method.correction),
        ("sync_steps", method.warmup),
    ):
        if reader and key not in s.model_fields_set:
            raise BadInput(f"{key}: missing; {method.name} reads it, so set it for this network")
    optimizer(s)


def check_engine(s: Workload, method: Method) -> None:
    """What only some engines do, and a lock-free method has one of its own. Raises BadInput."""
    if method.lockfree and s.engine == "reference":
        raise BadInput(
            f"engine = 'reference': {method.name} is not deterministic, so it has none; choose "
            "--engine pipeline"
        )
    if method.lockfree and s.segment:
        raise BadInput(
            f"segment = {s.segment}: {method.name} keeps one micro-batch at a time, so there is "
            "nothing to recompute; set segment to 0"
        )
    if s.trace and (method.lockfree or s.engine == "reference"):
        which = method.name if method.lockfree else "the reference engine"
        raise BadInput(
            f"trace = true: {which} has no pipeline to keep a timeline of; set trace to false"
        )


def override(cell: Cell, changes: Mapping[str, Any]) -> Cell:
    """The cell with other settings, checked again; None takes a setting back to its default."""
    settings = cell.settings.model_dump(include=cell.settings.model_fields_set) | dict(changes)
    kept = {key: value for key, value in settings.items() if value is not None}
    return make(cell.table, cell.network_name, cell.method, kept, cell.variant, cell.seeds)


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` of --set; the value is TOML, else a string, and None where there is none.

    Raises BadInput without a `=`.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise BadInput(f"--set {text!r}: write it as key=value")
    if not value:
        return key, None
    for spelling in (value, value.lower(), f"0{value}"):  # also True and .01
        try:
            return key, tomllib.loads(f"value = {spelling}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return key, value


def _plain(value: Any) -> Any:
    """What a field of a method row is for the hash: a piece counts by its name."""
    return getattr(value, "__qualname__", value)
