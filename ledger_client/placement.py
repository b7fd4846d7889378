"""Which bookies hold a new ledger: chance, weighted by room and by load.

Always taking the best bookie would send every new ledger of every client to the
same few. So bookies are drawn without replacement, each with a weight: its free
bytes, divided by how much busier than the average it is.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from ledger_client.errors import NotEnoughBookies
from metadata.records import BookieRecord


def choose_ensemble(
    bookies: Sequence[BookieRecord],
    ensemble_size: int,
    *,
    chance: random.Random,
    exclude: Collection[str] = (),
) -> list[str]:
    """Return the ids of *ensemble_size* different bookies that take writes.

    Args:
        bookies: those that are alive; read-only ones are left out.
        ensemble_size: how many to choose.
        chance: where randomness comes from.
        exclude: ids that must not be chosen.

    Raises:
        NotEnoughBookies: fewer than *ensemble_size* can be chosen.
    """
    able = {b.bookie_id: b for b in bookies if not b.read_only and b.bookie_id not in exclude}
    if len(able) < ensemble_size:
        raise NotEnoughBookies(healthy=len(able), needed=ensemble_size)
    load_average = sum(b.load for b in able.values()) / len(able)
    # Efraimidis and Spirakis: the greatest of u ** (1 / weight) are a weighted draw.
    ranked = sorted(
        able.values(),
        key=lambda bookie: chance.random() ** (1.0 / _weight(bookie, load_average)),
        reverse=True,
    )
    return [bookie.bookie_id for bookie in ranked[:ensemble_size]]


def _weight(bookie: BookieRecord, load_average: float) -> float:
    """Return free GiB over relative load; a bookie without room still has some weight."""
    free_gib = bookie.free / (1 << 30)
    relative_load = bookie.load / load_average if load_average > 0 else 0.0
    return max(free_gib, 0.01) / (1.0 + relative_load)
