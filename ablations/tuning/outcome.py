"""What came of a study: told, kept, drawn, and a row of it to paste."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from optuna import Study
from pandas import DataFrame

from ablations.tuning import rows
from ablations.tuning.candidates import Candidate, candidates
from ablations.tuning.parent import Parent
from ablations.tuning.spaces import Space
from ablations.tuning.trials import frame, importances
from reproduce.cells import Cell
from reproduce.progress import clock
from reproduce.provenance import SOURCE
from reproduce.store import Store
from reproduce.summary import aligned
from reproduce.tracking import results_folder
from reproduce.train import prepare


@dataclass(frozen=True)
class Conclusion:
    """What is to be done with an outcome."""

    best: int = 3
    """So many of the best trials are run again,"""
    seeds: int = 3
    """at so many fresh seeds each"""
    write: str | None = None
    """A table to add the tuned row to"""
    record: bool = False
    """Whether the outcome goes into results/recorded as well"""


def conclude(
    cell: Cell, space: Space, study: Study, store: Store, parent: Parent, asked: Conclusion
) -> int:
    """Print the outcome, keep it in the results folder and with the study's run, draw its figures,
    and add the tuned row to a table. Returns how many runs at fresh seeds failed."""
    folder, stem = results_folder() / "tuning", slug(study.study_name)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{stem}.lock"):
        found = frame(study, space)
        ranked = candidates(cell, space, study, store, parent.run_id, asked.best, asked.seeds)
        winner = max(ranked, key=lambda candidate: candidate.rank)
        share = importances(study)
        text, row = told(cell, study, found, ranked, winner, share)
        print(text)
        paths = [folder / f"{stem}.csv", folder / f"{stem}.md"]
        found.to_csv(paths[0], index=False)
        paths[1].write_text(text, encoding="utf-8")
        numbers = {"trials": float(len(found))}
        if winner.found is not None:
            numbers["winner"] = winner.found
        parent.tell(numbers, {path.name: path.read_text("utf-8") for path in paths})
        if asked.write is not None and winner.label == "own":
            print(f"{asked.write}: left as it is; the cell's own settings are the best")
        elif asked.write is not None:
            rows.add(asked.write, cell.name, row)
            print(f"{asked.write}: the tuned row is added")
        paths += _draw(stem, found, share, space, cell)
        for path in paths:
            print(path)
        if asked.record:
            _record(paths)
    return sum(c.runs - len(c.finals) - c.diverged for c in ranked)


def slug(name: str) -> str:
    """A name as a file's."""
    return re.sub(r"[^\w.+@=,-]+", "-", name)


def _draw(
    stem: str, found: DataFrame, share: Mapping[str, float], space: Space, cell: Cell
) -> list[Path]:
    from paper_figures import tuning

    logarithmic = {key for key, d in space.distributions.items() if getattr(d, "log", False)}
    metric = prepare(cell).task().metric
    return tuning.draw(stem, found, share, list(space.distributions), logarithmic, metric)


def _record(paths: list[Path]) -> None:
    folder = SOURCE / "results" / "recorded" / "tuning"
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        print(shutil.copy(path, folder))


def told(
    cell: Cell,
    study: Study,
    found: DataFrame,
    ranked: list[Candidate],
    winner: Candidate,
    share: Mapping[str, float],
) -> tuple[str, str]:
    """The outcome as Markdown, and the row to paste."""
    head = ["settings", *winner.values, "in the study", "at fresh seeds"]
    states = ", ".join(f"{n} {state}" for state, n in found["state"].value_counts().items())
    cost = clock(float(found["seconds"].sum()))
    lines = [
        f"# {study.study_name}",
        "",
        f"{len(found)} trials ({states}), {cost} of running time.",
        "",
        aligned([head, *(_line(candidate) for candidate in ranked)]),
    ]
    if share:
        shares = ", ".join(f"{key} {value:.0%}" for key, value in share.items())
        lines += ["", f"Share of the variance (fANOVA): {shares}."]
    comment = (
        f"Tuned in study {study.study_name!r}: {winner.label} of {len(found)}; "
        f"{_fresh(winner)} against {_fresh(ranked[0])} of its own settings."
    )
    row = rows.row(cell.name, winner.values, comment)
    if winner.label == "own":
        lines += ["", "The cell's own settings are the best of these."]
    else:
        lines += ["", "The row, to paste into a table:", "", "```toml", row.rstrip(), "```"]
    return "\n".join(lines) + "\n", row


def _line(candidate: Candidate) -> list[str]:
    values = map(str, candidate.values.values())
    return [candidate.label, *values, _short(candidate.found), _fresh(candidate)]


def _fresh(candidate: Candidate) -> str:
    """`93.2 [91.0, 95.0] over 3 seeds`, with how many diverged or failed."""
    if not candidate.runs:
        return f"{_short(candidate.found)} at one seed, not run again"
    failed = candidate.runs - len(candidate.finals) - candidate.diverged
    ends = [
        f"{n} {what}" for n, what in ((candidate.diverged, "diverged"), (failed, "failed")) if n
    ]
    mean = candidate.interval.text() if candidate.interval else "none"
    seeds = f"{len(candidate.finals)} {'seed' if len(candidate.finals) == 1 else 'seeds'}"
    return ", ".join([f"{mean} over {seeds}", *ends])


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
