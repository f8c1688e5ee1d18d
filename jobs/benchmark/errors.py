"""What ends the measuring."""

from __future__ import annotations


class BenchError(Exception):
    """Something without which figures would mean nothing."""
