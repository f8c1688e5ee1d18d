"""Leaves out of a failed run what does not matter for its failure."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from tests.simulation.scenario import Result, run

SECONDS = 20.0
"""Time for the shrinking of one failure."""


def shrink(result: Result) -> Result:
    """Runs the seed again with fewer and fewer draws, as long as the same sentence breaks (delta debugging)."""
    until = time.monotonic() + SECONDS
    best = run(result.seed, result.protocol, kept=result.kept)
    if kind(best) != kind(result):
        return result

    def without(keys: Iterable[str]) -> bool:
        nonlocal best
        left_out = set(keys)
        kept = {key: value for key, value in best.kept.items() if key not in left_out}
        tried = run(result.seed, result.protocol, kept=kept)
        if kind(tried) != kind(result):
            return False
        best = tried
        return True

    for kinds in ("turn", "next", "latency", "answer's latency", "records", "pause"):
        without(key for key in best.kept if key.startswith(kinds))
    size = len(best.kept)
    while size > 1 and time.monotonic() < until:
        size = max(size // 2, 1)
        keys = list(best.kept)
        for start in range(0, len(keys), size):
            if time.monotonic() < until:
                without(keys[start : start + size])
        if size == 1 and len(best.kept) < len(keys):
            size = 2
    return best


def kind(result: Result) -> Any:
    """What makes two failures the same: the sentence, or the type of the error."""
    return None if result.failure is None else (type(result.failure), str(result.failure).partition(":")[0])
