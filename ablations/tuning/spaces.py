"""Search spaces: which settings of a cell a study varies, and how far. See spaces.toml.

Everything is checked against the cell when a space is loaded: no trial is refused later.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from optuna import Trial
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reproduce.cells import Cell, explain, override, unread
from reproduce.errors import BadInput, choose
from reproduce.settings import PLACEMENT

SHIPPED = Path(__file__).parent / "spaces.toml"
FIXED = PLACEMENT | {"seed", "engine", "trace", "measure_discrepancy", "eval_every"}
"""Settings that are no hyperparameters"""
POINTS = 3


class Row(BaseModel):
    """One setting of a space as it stands in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    low: float | None = None
    high: float | None = None
    log: bool = False
    of: str | None = None
    """the setting that `low` and `high` are multiples of"""
    choices: Annotated[list[bool | int | float | str], Field(min_length=2)] | None = None
    points: Annotated[int, Field(ge=2)] = POINTS
    """values of a range on a grid"""


class Space:
    """What the study of one cell varies: setting -> distribution, as Optuna has them."""

    def __init__(self, distributions: Mapping[str, BaseDistribution], points: Mapping[str, int]):
        self.distributions, self._points = dict(distributions), dict(points)

    def suggest(self, trial: Trial, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a trial; `given`: those it was asked for with."""
        sampled = {key: self._suggest(trial, key, d) for key, d in self.distributions.items()}
        return self.values(sampled, given)

    def values(self, sampled: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """What a trial runs with: what was given as it is, other reals to four significant digits,
        which a table can name."""
        return {
            key: given.get(key, _rounded(value, self.distributions[key]))
            for key, value in sampled.items()
        }

    def _suggest(self, trial: Trial, key: str, distribution: BaseDistribution) -> Any:
        match distribution:
            case IntDistribution(low=low, high=high, log=log):
                return trial.suggest_int(key, low, high, log=log)
            case FloatDistribution(low=low, high=high, log=log):
                return trial.suggest_float(key, low, high, log=log)
            case CategoricalDistribution(choices=choices):
                return trial.suggest_categorical(key, choices)
        raise TypeError(distribution)

    def own(self, cell: Cell) -> dict[str, Any] | None:
        """The cell's own settings as a point of the space; None where they lie outside."""
        values = {key: getattr(cell.settings, key) for key in self.distributions}
        inside = (_contains(self.distributions[key], value) for key, value in values.items())
        return values if all(inside) else None

    def grid(self) -> list[dict[str, Any]]:
        """Every combination of the grid's values."""
        values = [list(self._values(key)) for key in self.distributions]
        return [dict(zip(self.distributions, point, strict=True)) for point in product(*values)]

    def _values(self, key: str) -> Iterator[Any]:
        match self.distributions[key]:
            case CategoricalDistribution(choices=choices):
                yield from choices
            case IntDistribution(low=low, high=high, log=log):
                yield from sorted({round(v) for v in _spread(low, high, log, self._points[key])})
            case FloatDistribution(low=low, high=high, log=log):
                yield from _spread(low, high, log, self._points[key])

    def told(self) -> dict[str, str]:
        """Setting -> its range in words, which two spaces are compared by."""
        return {key: _told(d) for key, d in self.distributions.items()}


def _rounded(value: Any, distribution: BaseDistribution) -> Any:
    if not isinstance(distribution, FloatDistribution) or value is None:
        return value  # None: the trial was cut off before it was sampled
    return min(max(float(f"{value:.4g}"), distribution.low), distribution.high)


def _spread(low: float, high: float, log: bool, points: int) -> list[float]:
    """`points` values from low to high, the ends exactly."""
    inner = (np.geomspace if log else np.linspace)(low, high, points)[1:-1]
    return [low, *(float(f"{value:.4g}") for value in inner), high]


def _contains(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return value is not None and distribution.low <= value <= distribution.high


def _told(distribution: BaseDistribution) -> str:
    if isinstance(distribution, CategoricalDistribution):
        return f"one of {', '.join(map(str, distribution.choices))}"
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    scale = ", logarithmic" if distribution.log else ""
    return f"{distribution.low:g} to {distribution.high:g}{scale}"


def load(cell: Cell, file: str | None = None) -> Space:
    """The space of the cell's method, from a file or the shipped one.

    Raises:
        BadInput: one line that names the file, the setting and the mend.
    """
    path = SHIPPED if file is None else Path(file)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise BadInput(f"--space {file}: cannot be read; give a path to a space") from error
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path.name}: not TOML: {error}") from error
    method = cell.method.name
    if not isinstance(document.get(method), dict) or not document[method]:
        raise BadInput(
            f'{path.name}: no space for method {method!r}; add a section ["{method}"]'
            f"{' to a file of your own and give it as --space' if file is None else ''}"
        )
    try:
        return space(cell, document[method])
    except BadInput as error:
        raise BadInput(f"{path.name}: [{method}] {error}") from error


def space(cell: Cell, rows: Mapping[str, Any]) -> Space:
    """The checked space of a section. Raises BadInput."""
    found, points = {}, {}
    for key, value in rows.items():
        _check_key(cell, key)
        try:
            row = Row.model_validate(value)
        except ValidationError as error:
            raise BadInput(f"{key}: {_explained(error, value)}") from error
        found[key], points[key] = _distribution(cell, key, row), row.points
        for end in _ends(found[key]):
            try:
                override(cell, {key: end})
            except BadInput as error:
                raise BadInput(f"{key}: at its end {end}: {error}") from error
    return Space(found, points)


def _check_key(cell: Cell, key: str) -> None:
    fields = type(cell.settings).model_fields
    if key not in fields:
        raise BadInput(f"{key}: unknown setting; {choose(key, fields)}")
    if key in FIXED:
        raise BadInput(f"{key}: not a hyperparameter; remove it")
    if key in unread(cell.method):
        raise BadInput(f"{key}: {cell.method.name} never reads it; remove it")


def _explained(error: ValidationError, value: Any) -> str:
    if not isinstance(value, dict):
        return f"{value!r}: write {{ low = ..., high = ... }} or {{ choices = [...] }}"
    return explain(error, Row)


def _distribution(cell: Cell, key: str, row: Row) -> BaseDistribution:
    if row.choices is not None:
        if row.low is not None or row.high is not None or row.log or row.of is not None:
            raise BadInput(f"{key}: choices stand alone; remove low, high, log and of")
        if len(set(row.choices)) < len(row.choices):
            raise BadInput(f"{key}: choices: one is named twice; remove it")
        return CategoricalDistribution(row.choices)
    if row.low is None or row.high is None:
        raise BadInput(f"{key}: write {{ low = ..., high = ... }} or {{ choices = [...] }}")
    low, high = row.low, row.high
    if not low < high:
        raise BadInput(f"{key}: low = {low:g} is not below high = {high:g}; swap or spread them")
    if row.log and low <= 0:
        raise BadInput(
            f"{key}: low = {low:g}: a logarithmic scale has no 0; raise it or leave out log"
        )
    scale = _scale(cell, key, row.of)
    if type(cell.settings).model_fields[key].annotation is int:
        return _whole(key, low * scale, high * scale, row)
    ends = [float(f"{end * scale:.6g}") for end in (low, high)]  # 0.3 of 0.01 is 0.003
    return FloatDistribution(ends[0], ends[1], log=row.log)


def _whole(key: str, low: float, high: float, row: Row) -> IntDistribution:
    if row.of is None and (low % 1 or high % 1):
        raise BadInput(f"{key}: {low:g} to {high:g}: it is a whole number; make its ends whole")
    first, last = max(round(low), 1 if row.log else 0), round(high)
    if not first < last:
        raise BadInput(f"{key}: from {first} to {last} there is nothing to search; spread the ends")
    return IntDistribution(first, last, log=row.log)


def _scale(cell: Cell, key: str, of: str | None) -> float:
    if of is None:
        return 1.0
    fields = type(cell.settings).model_fields
    if of not in fields:
        raise BadInput(f"{key}: of = {of!r}: unknown setting; {choose(of, fields)}")
    value = getattr(cell.settings, of)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise BadInput(f"{key}: of = {of!r}: it is {value!r} in this cell; name a positive number")
    return float(value)


def _ends(distribution: BaseDistribution) -> tuple[Any, ...]:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return distribution.low, distribution.high
