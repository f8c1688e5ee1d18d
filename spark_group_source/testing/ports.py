"""Free ports of the loopback address."""

from __future__ import annotations

import random
import socket

from spark_group_source.testing.errors import EmbeddedKafkaError

HOST = "127.0.0.1"

# Below the ephemeral ranges of Linux (32768) and macOS (49152): otherwise an outgoing connection may take
# the port of a broker while that broker restarts.
LOW, HIGH = 20000, 32000

TRIES = 200


def free_ports(count: int) -> list[int]:
    """Returns ``count`` different ports of the loopback address on which nothing listens now.

    Another process may take a port before you use it. After a bind failure, start again with other ports.

    Raises:
        EmbeddedKafkaError: too few ports are free.
    """
    free: list[int] = []
    for port in random.sample(range(LOW, HIGH), TRIES):
        if len(free) == count:
            return free
        if _is_free(port):
            free.append(port)
    raise EmbeddedKafkaError(f"Only {len(free)} of {TRIES} ports tried between {LOW} and {HIGH} are free on {HOST}.")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
