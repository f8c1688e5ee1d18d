"""The error that ends the benchmark."""

from __future__ import annotations


class BenchError(Exception):
    """The benchmark cannot produce meaningful figures."""
