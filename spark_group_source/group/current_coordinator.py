"""The group's coordinator, as all clients of one query know it."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_group_source.grace import Permission


@dataclass(slots=True)
class CurrentCoordinator:
    """The group's coordinator as the clients of one query know it; they share this. ``None`` at first.

    A former coordinator that was suspended or cut off may still answer, also lookups of the coordinator and of offsets.
    But one that knows the member's generation also knows all commits before it.

    Attributes:
        id: the broker that a client found last. A client that knows another one looks it up again.
        knows_generation: the broker that last answered the member as one of its present generation.
        permission: READ on the group, as coordinators have granted or denied it.
    """

    id: int | None = None
    knows_generation: int | None = None
    permission: Permission = field(default_factory=lambda: Permission("READ on the group"))
