"""The claims as markdown, for a terminal, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reproduce.claims.finding import Claim, Finding, Verdict
from reproduce.records import Records
from reproduce.summary import origin

HEAD = ("id", "claim", "paper (seed)", "measured", "verdict")
NOTES = """\
`seed` is the reading of the paper that the project starts from; the paper's appendix was not at
hand. A gap is the synchronous (or named) row less the method, in points of the metric, paired by
seed. Brackets: of a gap the 95% bootstrap interval over seeds, of an exponent Student's of its fit,
of a speedup the bounds that the evaluations around the target leave, over seeds. A verdict follows
from the rules in `reproduce/claims/rules.py`: a claim is not reproduced if one of its findings is
not; else not decidable if one is not decidable, or none has a verdict; else reproduced."""
COLOURS = {
    Verdict.REPRODUCED: "green",
    Verdict.NOT_REPRODUCED: "red",
    Verdict.UNDECIDED: "yellow",
}


def markdown(claims: Sequence[Claim], records: Records, unfinished: Sequence[str] = ()) -> str:
    """The table of claims, then each claim's findings with their cells and runs, then where the
    records come from.

    Args:
        unfinished: runs of the table that are not finished.
    """
    title = f"# Claims C1 to C5, from the records of table `{records.table}`"
    parts = [title, table(claims), NOTES]
    parts += [_section(claim) for claim in claims]
    if unfinished:
        parts.append(f"Not finished: {_code(unfinished)}.")
    return "\n\n".join([*parts, origin(records.runs)]) + "\n"


def table(claims: Sequence[Claim]) -> str:
    """One row a claim."""
    rows = [HEAD, ["---"] * len(HEAD), *map(line, claims)]
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows)


def line(claim: Claim) -> tuple[str, ...]:
    """One claim as a row of the table: the findings that its verdict follows from, in brief, one a
    line."""
    ruled = [f for f in claim.findings if f.verdict is not None]
    measured = "\n".join(f"{f.what}: {f.brief} ({f.verdict})" for f in ruled)
    return claim.id, claim.statement, claim.paper, measured or "nothing", str(claim.verdict)


def _section(claim: Claim) -> str:
    title = f"## {claim.id}: {claim.statement}"
    verdict = f"**{claim.verdict}**. The paper ({claim.strength}): {claim.paper}."
    findings = "\n".join(_finding(finding) for finding in claim.findings)
    parts = [title, verdict, findings]
    if claim.missing:
        parts.append(f"To run for more: {'; '.join(claim.missing)}.")
    return "\n\n".join(parts)


def _finding(finding: Finding) -> str:
    ruled = f"{finding.verdict or 'information'}{finding.why and ', '}{finding.why}"
    lines = [
        f"- **{finding.what}**: {ruled}",
        f"  - paper: {finding.paper}",
        f"  - measured: {finding.measured}",
    ]
    if finding.cells:
        lines.append(f"  - cells: {_code(finding.cells)}")
    if finding.runs:
        lines.append(f"  - runs: {_code(finding.runs)}")
    return "\n".join(lines)


def _code(texts: Sequence[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def show(claims: Sequence[Claim], console: Console) -> None:
    """The same on a terminal, wrapped to its width: the table, then what each verdict rests on."""
    drawn = Table(*HEAD[:3], HEAD[4], show_lines=True)
    for claim in claims:
        named, statement, paper, _, verdict = line(claim)
        drawn.add_row(named, statement, paper, Text(verdict, COLOURS[claim.verdict]))
    console.print(drawn)
    for claim in claims:
        console.print(Text(f"\n{claim.id}  {claim.statement}: {claim.verdict}", "bold"))
        for finding in claim.findings:
            console.print(Padding(Text(finding.what), (0, 0, 0, 2), expand=False))
            said = Text(f"{finding.brief}\n")
            if finding.verdict is not None:
                said.append(str(finding.verdict), COLOURS[finding.verdict])
            else:
                said.append("information")
            said.append(f"{finding.why and ', '}{finding.why}")
            console.print(Padding(said, (0, 0, 0, 4), expand=False))
        if claim.missing:
            console.print(
                Padding(f"to run for more: {'; '.join(claim.missing)}", (0, 0, 0, 2), expand=False)
            )


def as_json(claims: Sequence[Claim], records: Records, unfinished: Sequence[str]) -> dict[str, Any]:
    """Everything as plain values; a number that is not finite is null."""
    told = [asdict(claim) | {"verdict": str(claim.verdict)} for claim in claims]
    found = {"table": records.table, "claims": told, "unfinished": list(unfinished)}
    cleaned: dict[str, Any] = plain(found)
    return cleaned


def plain(value: Any) -> Any:
    """The value with lists for tuples, plain strings, and None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
