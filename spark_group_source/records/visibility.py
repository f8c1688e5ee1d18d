"""Which batches give rows: the isolation levels of Kafka's consumer, batch by batch.

Control batches never do. Under read_committed neither do the transactional batches of a producer from the first offset
of an aborted transaction (the Fetch response lists those) to the ABORT marker that ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from spark_group_source.records.frames import CONTROL, TRANSACTIONAL

_ABORT = 0


def visible(
    headers: npt.NDArray[np.void], aborted: Sequence[tuple[int, int]], marker: Callable[[int], int | None]
) -> npt.NDArray[np.bool_]:
    """Whether each of one slice's batches gives rows.

    Args:
        headers: of all complete batches of the slice, in their order: state carries from one to the next.
        aborted: (producer id, first offset) of the aborted transactions; empty for read_uncommitted.
        marker: gives the type of the marker in the control batch of that index: 0 ABORT, 1 COMMIT, None if it is empty.
    """
    attributes = headers["attributes"]
    control = (attributes & CONTROL) != 0
    found: npt.NDArray[np.bool_] = ~control
    if not aborted:
        return found
    transactional = (attributes & TRANSACTIONAL) != 0
    last_offsets = headers["base_offset"] + headers["last_offset_delta"].astype(np.int64)
    pending = sorted(aborted, key=lambda each: each[1], reverse=True)
    aborting: set[int] = set()
    for index in np.flatnonzero(transactional).tolist():
        while pending and pending[-1][1] <= last_offsets[index]:
            aborting.add(pending.pop()[0])
        producer = int(headers["producer_id"][index])
        if producer not in aborting:
            continue
        if not control[index]:
            found[index] = False
        elif marker(index) == _ABORT:
            aborting.remove(producer)
    return found
