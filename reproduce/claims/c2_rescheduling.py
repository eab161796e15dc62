"""C2: T1 against no technique, against synchronous training, and on Hogwild!."""

from __future__ import annotations

from collections.abc import Collection

from pandas import DataFrame

from reproduce.claims import rules
from reproduce.claims.build import (
    Row,
    absent,
    gap_finding,
    missing,
    row,
    rows,
    unfinished,
    utilization_findings,
)
from reproduce.claims.evidence import gaps, measured_delays, networks, utilization
from reproduce.claims.finding import Claim, Finding
from reproduce.records import Records

ALONE = "T1 alone trains what no technique does not"
SYNCHRONOUS = {
    "accuracy": "95.0% with T1 alone, 95.0% synchronous",
    "bleu": "34.1 BLEU with T1 alone, 34.5 synchronous",
}
HOGWILD = "T1 also improves Hogwild!"
SEED_RATIO = "(N+P−1)/N: 7.6 is P = 107, N = 16"


def claim(records: Records, cells: Collection[str] = ()) -> Claim:
    """Without the deep network, on which T1 alone diverges in the paper as well (C3)."""
    shallow = [name for name in networks(records, cells) if not name.endswith(rules.DEEP)]
    found: list[Finding] = []
    lacking: list[str] = []
    none, synchronous, used = gaps(records, "async"), gaps(records), utilization(records)
    for network in shallow:
        found += _against_none(none, network)
        found += unfinished(records, cells, network, ("async", "t1"), ALONE)
        found += _against_synchronous(synchronous, network)
        found += unfinished(records, cells, network, ("gpipe", "t1"), _paper(records, network))
        found += utilization_findings(used, network, "t1", "7.6 times", SEED_RATIO)
        lacking += missing(records, network, ("gpipe", "async", "t1"))
        hogwild_rows = [f"hogwild{kind}{t1}" for kind in ("", "-lockfree") for t1 in ("", "+t1")]
        lacking += [cell for cell in missing(records, network, hogwild_rows) if cell in cells]
    hogwild = _hogwild(records, shallow, cells)
    if not any(finding.paper == ALONE for finding in found):
        found.append(absent("t1 against async", ALONE))
    if not any(finding.paper in SYNCHRONOUS.values() for finding in found):
        found.append(absent("t1 against gpipe", SYNCHRONOUS["accuracy"]))
    if not hogwild:
        found.append(absent("T1 on Hogwild!", HOGWILD))
        lacking.append("a network with the rows hogwild and hogwild+t1")
    if not shallow:
        lacking.append(f"a network other than {rules.DEEP} with the rows gpipe, async and t1")
    return Claim(
        "C2",
        "Deterministic delay can be corrected by rescaling the learning rate",
        "strong",
        f"{SYNCHRONOUS['accuracy']}; {SYNCHRONOUS['bleu']}; at 7.6 times the utilization of "
        f"GPipe; {HOGWILD}",
        (*found, *hogwild),
        tuple(lacking),
    )


def _against_none(found: DataFrame, network: str) -> list[Finding]:
    gap = row(found, network=network, method="t1")
    return [] if gap is None else [gap_finding(gap, rules.better(gap), ALONE)]


def _against_synchronous(found: DataFrame, network: str) -> list[Finding]:
    gap = row(found, network=network, method="t1")
    if gap is None:
        return []
    ruling = rules.equal(gap, rules.PAPER_T1_GAP.get(gap["metric"], rules.PAPER_GAP))
    return [gap_finding(gap, ruling, _synchronous(gap["metric"]))]


def _synchronous(metric: str) -> str:
    return SYNCHRONOUS.get(metric, SYNCHRONOUS["accuracy"])


def _paper(records: Records, network: str) -> str:
    """The same of a network, by the metric of any of its runs."""
    return _synchronous(next(iter(records.runs_of(network=network)["metric"]), ""))


def _hogwild(records: Records, shallow: list[str], cells: Collection[str]) -> list[Finding]:
    """On modelled delays, and on those of lock-free workers."""
    found = []
    for baseline in ("hogwild", "hogwild-lockfree"):
        method = f"{baseline}+t1"
        for gap in rows(gaps(records, baseline), method=method):
            if gap["network"] in shallow:
                found.append(gap_finding(gap, rules.better(gap), HOGWILD, _delays(records, gap)))
        for network in shallow:
            found += unfinished(records, cells, network, (baseline, method), HOGWILD)
    return found


def _delays(records: Records, gap: Row) -> str:
    found = row(measured_delays(records), network=gap["network"], method=gap["method"])
    if found is None:
        return ""
    return f"delays measured: mean {found['mean']:.2f}, largest {found['largest']:.0f} updates"
