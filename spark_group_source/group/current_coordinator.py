"""The group's coordinator, shared by all clients of one query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_group_source.grace import Permission

if TYPE_CHECKING:
    from spark_group_source.wire.metadata import Broker  # its messages delay the start of a reader


@dataclass(slots=True)
class CurrentCoordinator:
    """The group's coordinator. The clients of one query share this object.

    A former coordinator that was suspended or cut off may still answer, even lookups of the coordinator and of offsets.
    But a broker that knows the member's generation also knows all commits before it.

    Attributes:
        broker: the broker that a client found last. A client that knows another broker looks up the coordinator again;
            a client that knows none uses this broker. ``None`` at first.
        knows_generation: the broker that last answered the member in its current generation.
        permission: READ on the group, as coordinators have granted or denied it.
    """

    broker: Broker | None = None
    knows_generation: int | None = None
    permission: Permission = field(default_factory=lambda: Permission("READ on the group"))

    @property
    def id(self) -> int | None:
        """The id of the broker that a client found last."""
        if self.broker is None:
            return None
        return self.broker.id
