"""Name resolution by the system's resolver, before a deadline."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded
from spark_group_source.text import printable
from spark_group_source.wire.waiting import Result, call_with_timeout


def canonical_names(host: str, deadline: Deadline) -> list[str]:
    """Returns the names of a host's addresses from the system's resolver; an address without a name stays an address.

    Raises:
        BrokerUnavailable: the host has no address.
        DeadlineExceeded: the resolver did not answer in time.
    """

    def look_up() -> list[str]:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(socket.getnameinfo(each[4], socket.NI_NUMERICSERV)[0] for each in addresses))

    return _resolve_in_time(look_up, "names of", host, deadline)


def resolve(host: str, deadline: Deadline) -> list[Any]:
    """Returns all addresses of a host, without a port. A literal address is not looked up, so it takes no thread.

    Raises the same errors as :func:`canonical_names`.
    """
    with contextlib.suppress(OSError, ValueError):  # it is a name
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)

    def look_up() -> list[Any]:
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)

    return _resolve_in_time(look_up, "addresses of", host, deadline)


def _resolve_in_time(look_up: Callable[[], Result], what: str, host: str, deadline: Deadline) -> Result:
    """Calls the system's resolver, which takes no timeout."""
    try:
        return call_with_timeout(look_up, deadline, f"{what} {host}")
    except TimeoutError as error:
        raise DeadlineExceeded(f"Host '{printable(host)}' was not resolved in time.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL, an empty label, or one of more than 63 characters
        raise BrokerUnavailable(f"Host '{printable(host)}' cannot be resolved: {error}.") from error
