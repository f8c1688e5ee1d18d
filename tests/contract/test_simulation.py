"""The contract in simulated runs: ``make sim`` repeats each of them."""

from __future__ import annotations

import os
import time

import pytest

from tests.simulation.__main__ import try_mutant
from tests.simulation.find import read_begins
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.scenario import KINDS, Result, run
from tests.simulation.shrink import shrink
from tests.simulation.substitution import substituted


def check(result: Result) -> None:
    """Fails with the command that repeats the run, and with its story."""
    if result.failure is not None:
        story = "\n".join(shrink(result).story[-60:])
        pytest.fail(f"{result.failure}\nmake sim SEED={result.seed} PROTOCOL={result.protocol}\n{story}", pytrace=False)


@pytest.mark.parametrize("protocol", KINDS)
def test_no_sentence_breaks_in_simulated_runs(protocol: str) -> None:
    with substituted():
        for seed in range(5000, 5020):
            check(run(seed, protocol))


def test_no_sentence_breaks_with_fresh_seeds() -> None:
    until = time.monotonic() + float(os.environ.get("SIM_SECONDS", "60"))
    seed = int(os.environ.get("SIM_FIRST") or time.time_ns() // 1_000_000)
    with substituted():
        while time.monotonic() < until:
            seed += 1
            for protocol in KINDS:
                check(run(seed, protocol))


def test_a_seed_gives_the_same_run_twice() -> None:
    with substituted():
        first, second = run(7, "consumer"), run(7, "consumer")
    assert (first.story, first.steps, first.kept) == (second.story, second.steps, second.kept)


def test_the_seeds_that_find_mistakes_break_nothing_without_them() -> None:
    with substituted():
        for begin in read_begins().values():
            check(run(begin.seed, begin.protocol, aim=begin.aim))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.name in read_begins()], ids=lambda each: each.name)
def test_a_mistake_is_found_again(mutant: Mutant) -> None:
    assert try_mutant(mutant, 0.0), "no run breaks: find other seeds with make sim MUTANT="
