"""Ports for servers that must know theirs before they start."""

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
    """That many different ports of the loopback address on which nothing listens now.

    Nothing keeps another process from taking one before it is used: start again with others on a bind failure.

    Raises:
        EmbeddedKafkaError: too few are free.
    """
    found: list[int] = []
    for port in random.sample(range(LOW, HIGH), TRIES):
        if len(found) == count:
            return found
        if _is_free(port):
            found.append(port)
    raise EmbeddedKafkaError(f"Only {len(found)} of {TRIES} ports tried between {LOW} and {HIGH} are free on {HOST}.")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
