"""The paper's claims C1 to C5, ruled on from the records of a table.

`evidence` computes, `rules` decides, `text` tells; a claim has a file of its own.
"""

from __future__ import annotations

from collections.abc import Collection

from reproduce.claims import (
    c1_synchrony,
    c2_rescheduling,
    c3_discrepancy,
    c4_memory,
    c5_activations,
)
from reproduce.claims.finding import Claim, Finding, Verdict
from reproduce.records import Records

__all__ = ["Claim", "Finding", "Verdict", "claims"]


def claims(records: Records, cells: Collection[str] = ()) -> list[Claim]:
    """C1 to C5 with all that the records say of them, be it nothing.

    Args:
        cells: names of the table's cells: a part whose rows are among them and not finished is not
            decided, and no other row stands in. Without any, the records are all that is asked for.
    """
    parts = (c1_synchrony, c2_rescheduling, c3_discrepancy, c4_memory, c5_activations)
    return [part.claim(records, cells) for part in parts]
