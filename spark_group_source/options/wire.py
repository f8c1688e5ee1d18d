"""Connection settings from the options."""

from __future__ import annotations

from spark_group_source.options.table import SourceOptions
from spark_group_source.wire.settings import WireOptions


def wire_options(options: SourceOptions, client_id: str) -> WireOptions:
    """The connection settings of these options."""
    return WireOptions(
        bootstrap_servers=options.bootstrap_servers,
        client_id=client_id,
        request_timeout=options.request_timeout,
        retry_backoff=options.retry_backoff,
        retry_backoff_max=options.retry_backoff_max,
        reconnect_backoff=options.reconnect_backoff,
        reconnect_backoff_max=options.reconnect_backoff_max,
        connect_timeout=options.connect_timeout,
        connect_timeout_max=options.connect_timeout_max,
        max_idle=options.connections_max_idle,
        canonical_bootstrap=options.canonical_bootstrap,
        receive_buffer=options.receive_buffer,
        send_buffer=options.send_buffer,
        source_host=options.source_host,
        source_ports=options.source_ports,
        tls=options.tls,
        sasl=options.sasl,
    )
