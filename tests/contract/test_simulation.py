"""The contract in simulated runs: those that once failed, and fresh ones. ``make sim`` repeats each of them."""

from __future__ import annotations

import os
import time

import pytest

from tests.simulation.scenario import PROTOCOLS, Result, run
from tests.simulation.seeds import FAILED_ONCE
from tests.simulation.shrink import shrink
from tests.simulation.substitution import substituted

FRESH_SECONDS = float(os.environ.get("SIM_SECONDS", "60"))


def check(result: Result) -> None:
    """Fails with the command that repeats the run, and with its story."""
    if result.failure is not None:
        story = "\n".join(shrink(result).story[-60:])
        pytest.fail(f"{result.failure}\nmake sim SEED={result.seed} PROTOCOL={result.protocol}\n{story}", pytrace=False)


@pytest.mark.parametrize(("protocol", "seeds"), FAILED_ONCE.items(), ids=FAILED_ONCE.keys())
def test_no_sentence_breaks_in_runs_that_failed_once(protocol: str, seeds: tuple[int, ...]) -> None:
    with substituted():
        for seed in seeds:
            check(run(seed, protocol))


def test_no_sentence_breaks_in_fresh_runs() -> None:
    ends_at, seed = time.monotonic() + FRESH_SECONDS, time.time_ns() // 1_000_000
    with substituted():
        while time.monotonic() < ends_at:
            seed += 1
            for protocol in PROTOCOLS:
                check(run(seed, protocol))


def test_a_seed_gives_the_same_run_twice() -> None:
    with substituted():
        first, second = run(7, "consumer"), run(7, "consumer")
    assert (first.story, first.steps, first.kept) == (second.story, second.steps, second.kept)
