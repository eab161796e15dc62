"""Claims of tables of all kinds: other networks, few rows, one seed, nothing but divergence."""

from __future__ import annotations

import json

import pytest

from reproduce.claims import Verdict, claims
from reproduce.claims.text import as_json, markdown

from ..made import made, run, seeded

R50, R152, PHRASES = "digits-resnet50", "digits-resnet152", "phrases-transformer"
UNDECIDED = Verdict.UNDECIDED
SEEDS = range(3)

TABLES = {
    "foreign": [run("cifar10-resnet18", "ours", target=None)],
    "one row": [run(R50, "t1+t2")],
    "only a sweep": [run(R50, "t1", variant="width:width=4")],
    "all diverged": [
        run(network, method, seed, diverged_at=3)
        for network in (R50, R152)
        for method in ("gpipe", "pipedream", "async", "t1", "t1+t2", "hogwild", "hogwild+t1")
        for seed in SEEDS
    ],
    "one seed": [
        run(network, method, final=95.0)
        for network in (R50, R152, PHRASES)
        for method in ("gpipe", "pipedream", "async", "t1", "t1+t2", "t1+t2+t3", "hogwild")
    ],
}


@pytest.mark.parametrize("name", TABLES)
def test_any_table_gives_five_claims(name: str) -> None:
    records = made(TABLES[name])
    found = claims(records)
    assert [claim.id for claim in found] == ["C1", "C2", "C3", "C4", "C5"]
    text = markdown(found, records)
    assert "nan" not in text and "inf" not in text.replace("information", "")
    told = json.loads(json.dumps(as_json(found, records, []), allow_nan=False))
    assert len(told["claims"]) == 5
    for claim in found:
        assert claim.findings
        for finding in claim.findings:
            assert finding.verdict is None or finding.why
            assert finding.measured != "nothing" or (claim.missing and finding.verdict is UNDECIDED)


@pytest.mark.parametrize("name", ["foreign", "one row", "only a sweep"])
def test_nothing_is_reproduced_from_nothing(name: str) -> None:
    found = claims(made(TABLES[name]))
    assert {claim.verdict for claim in found} == {UNDECIDED}
    assert all(claim.missing for claim in found)


def test_missing_cells_are_named() -> None:
    found = claims(made([run(R50, "t1+t2"), run(R152, "t1")]))
    assert "digits-resnet50/gpipe" in found[0].missing
    assert {"digits-resnet50/async", "digits-resnet50/t1"} <= set(found[1].missing)
    assert "digits-resnet152/t1+t2" in found[2].missing
    assert "digits-resnet50/pipedream" in found[3].missing


def test_findings_name_their_cells_and_runs() -> None:
    records = made([*seeded(R50, "gpipe", 95.0), *seeded(R50, "t1+t2", 95.0)])
    gap = claims(records)[0].findings[0]
    assert gap.cells == ("digits-resnet50/gpipe", "digits-resnet50/t1+t2")
    assert sorted(gap.runs) == sorted(records.runs["mlflow_run_id"])
    assert "one step of the metric on the test set is 0.28" in gap.measured
    assert gap.brief == "gap 0.00 [0.00, 0.00] points over 3 seeds"
