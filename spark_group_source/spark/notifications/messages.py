"""The messages between the reader's :mod:`.client` and the :mod:`.server` in the user's process: one on each line."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from spark_group_source.options.source_options import SourceOptions

DRAIN = b"drain\n"
"""Asks for all notifications so far."""

DRAINED = b"drained\n"
"""The answer, which follows these notifications."""

MAY_BEGIN = b"begin "
"""Asks whether the query of a source may begin: the source's key follows."""

BEGINS = b"begins "
"""The answer: JSON follows, a :class:`Rejection` or null."""


APPLICATION = b"application "
"""Names the Spark application of a reader: the application's id follows."""

LEAVE = b"leave\n"
"""Notifies a reader that its application ends."""

STOPPED = b"stopped "
"""Notifies a reader that its query was stopped: the digest of the end of the query's last planned batch follows, or
:data:`ALL`."""

ALL = b"*"
"""In place of a digest: all queries of the application were stopped."""


class Rejection(NamedTuple):
    """Why a query must not run."""

    happened: str
    action: str
    """What the user should do."""


def source_key(options: SourceOptions) -> str:
    """A name for a source, equal for sources that share a group and have the same topics; without secrets."""
    group = options.group
    return digest(
        {"group": group.group_id, "topics": str(group.subscription), "servers": options.wire.bootstrap_servers}
    ).decode()


def digest(end: dict[str, Any]) -> bytes:
    """A name for an end offset: equal for equal offsets only."""
    return hashlib.sha256(json.dumps(end, sort_keys=True).encode()).hexdigest().encode()
