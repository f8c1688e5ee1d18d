"""Which record batches give rows to a consumer.

Control batches never give rows. Under read_committed, neither do the record batches of an aborted transaction. These
are the record batches of its producer from the first offset of the transaction, which the Fetch response lists, to its
ABORT marker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from spark_group_source.records.batches import CONTROL, TRANSACTIONAL

_ABORT = 0


def visible_batches(
    headers: npt.NDArray[np.void], aborted: Sequence[tuple[int, int]], marker_type: Callable[[int], int | None]
) -> npt.NDArray[np.bool_]:
    """Whether each record batch of one partition gives rows.

    Args:
        headers: of all complete record batches of the partition, in order: open transactions span record batches.
        aborted: (producer id, first offset) of the aborted transactions; empty for read_uncommitted.
        marker_type: gives the marker in the control batch of an index: 0 ABORT, 1 COMMIT, None if it was removed.
    """
    attributes = headers["attributes"]
    control = (attributes & CONTROL) != 0
    visible: npt.NDArray[np.bool_] = ~control
    if not aborted:
        return visible
    transactional = (attributes & TRANSACTIONAL) != 0
    last_offsets = headers["base_offset"] + headers["last_offset_delta"].astype(np.int64)
    pending = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    for index in np.flatnonzero(transactional).tolist():
        while pending and pending[-1][1] <= last_offsets[index]:
            aborting.add(pending.pop()[0])
        producer = int(headers["producer_id"][index])
        if producer not in aborting:
            continue
        if not control[index]:
            visible[index] = False
        elif marker_type(index) == _ABORT:
            aborting.remove(producer)
    return visible
