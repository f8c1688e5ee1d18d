"""How brokers are reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireOptions:
    """Settings of all connections of one query; picklable and hashable. Times are in seconds, sizes in bytes.

    ``receive_buffer`` and ``send_buffer`` of -1 leave the sizes to the operating system.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str
    request_timeout: float = 30.0
    connect_timeout: float = 10.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0
    receive_buffer: int = -1
    send_buffer: int = -1
