"""How brokers are reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireOptions:
    """Settings of all connections of one query; picklable and hashable. Times are in seconds, sizes in bytes.

    ``connect_timeout`` and ``reconnect_backoff`` double with each failure in a row, up to their ``_max``. Connections
    that were not used for ``max_idle`` are not used again: a firewall may have forgotten them.
    ``canonical_bootstrap``: each bootstrap server is replaced by the names of its addresses. ``receive_buffer`` and
    ``send_buffer`` of -1 leave the sizes to the operating system. ``source_host`` and ``source_ports``, the first and
    the last, are where connections come from.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str
    request_timeout: float = 30.0
    connect_timeout: float = 10.0
    connect_timeout_max: float = 30.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0
    reconnect_backoff: float = 0.05
    reconnect_backoff_max: float = 1.0
    max_idle: float = 540.0
    canonical_bootstrap: bool = False
    receive_buffer: int = -1
    send_buffer: int = -1
    source_host: str | None = None
    source_ports: tuple[int, int] | None = None
