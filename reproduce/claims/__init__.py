"""The paper's claims C1 to C5, ruled on from the records of a table.

`evidence` computes, `rules` decides, `text` tells; a claim has a file of its own.
"""

from __future__ import annotations

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


def claims(records: Records) -> list[Claim]:
    """C1 to C5 with all that the records say of them, be it nothing."""
    parts = (c1_synchrony, c2_rescheduling, c3_discrepancy, c4_memory, c5_activations)
    return [part.claim(records) for part in parts]
