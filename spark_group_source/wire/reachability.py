"""Which servers and addresses failed in this process, so that later connections try the others first."""

from __future__ import annotations

import threading

from spark_group_source.clock import exponential

Address = tuple[str, int]
"""A host and a port."""

MAX_KEPT = 1000
"""Maximum number of addresses whose failures are remembered: the addresses of a cluster may change again and again."""


FIRST_PATIENCE, MAX_PATIENCE = 2.0, 60.0
"""Seconds for the first try of an address, and their maximum: each failure in a row doubles them. A host that is up
answers within a round trip, or a second later if a packet is lost."""


class Reachability:
    """Counts the failures in a row of each address, for all connections of this process. Thread-safe.

    Only the order and the patience of later tries depend on the counts: no address is left out for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[Address, int] = {}

    def record_failure(self, address: Address) -> None:
        """Notes that no server answered at this address, or that this client cannot use the server."""
        with self._lock:
            self._failures[address] = self._failures.pop(address, 0) + 1
            if len(self._failures) > MAX_KEPT:
                del self._failures[next(iter(self._failures))]

    def record_success(self, address: Address) -> None:
        """Forgets the failures of this address."""
        with self._lock:
            self._failures.pop(address, None)

    def failures(self, address: Address) -> int:
        """Returns how often this address has failed since it last answered."""
        return self._failures.get(address, 0)

    def patience(self, address: Address) -> float:
        """Returns how many seconds to wait for this address while other addresses could be tried."""
        return exponential(FIRST_PATIENCE, MAX_PATIENCE, self.failures(address))

    def clear(self) -> None:
        """Forgets all failures."""
        with self._lock:
            self._failures.clear()


SERVERS = Reachability()
"""Failures by the host and port that the options or the brokers' metadata name."""

EAGER = Reachability()
"""Failures of connections that asked for the cluster before they knew the broker's versions, by host and port. Later
connections to such an address await the versions first."""

ADDRESSES = Reachability()
"""Failures by IP address and port: a host name may have several addresses, of which only some answer."""
