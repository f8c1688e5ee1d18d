"""Settings of connections to brokers."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.wire.security import SignIn, TlsLayer


@dataclass(frozen=True, slots=True)
class WireOptions:
    """Settings of all connections of one query; picklable and hashable. Times are in seconds, sizes in bytes.

    ``connect_timeout`` and ``reconnect_backoff`` double with each failure in a row, up to their ``_max``. The source
    replaces a connection that was idle for ``max_idle``, because a firewall may have dropped it.
    ``canonical_bootstrap`` replaces each bootstrap server with the names of its addresses. If ``receive_buffer`` or
    ``send_buffer`` is -1, the operating system chooses the size. ``source_host`` and ``source_ports`` (the first and
    the last) are the local addresses of connections. ``rack`` is this client's rack: the group's leader or coordinator
    prefers to assign partitions with a replica in it, and a task reads from that replica, for ``metadata_max_age``
    before it asks the leader again. ``consumer_protocol``: the brokers must support ``kafka.group.protocol=consumer``
    (KIP-848). Without ``tls`` nothing is encrypted; without ``sasl`` the client stays anonymous.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = ""
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
    rack: str | None = None
    metadata_max_age: float = 300.0
    consumer_protocol: bool = False
    tls: TlsLayer | None = None
    sasl: SignIn | None = None
