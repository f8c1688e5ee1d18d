"""The command ``make sim``: runs seeds, and tells the story of one that fails.

    SEED=17 PROTOCOL=consumer   repeats one run, with the product's log
    SEEDS=1000                  runs as many seeds of each protocol, or SECONDS=3600 as many as fit
    MUTANT=A1                   runs until a mistake that is put into the product is found; MUTANT=all tries each

A failure prints the command that repeats it, and its story with all that does not matter left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.mutants import MUTANTS, apply
from tests.simulation.scenario import PROTOCOLS, Result, run
from tests.simulation.shrink import shrink
from tests.simulation.substitution import substituted

BLOCK = 20
PACKAGE = Path(__file__).parents[2] / "spark_group_source"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make sim", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="repeats this run only")
    parser.add_argument("--seeds", type=int, default=500, help="runs of each protocol")
    parser.add_argument("--seconds", type=float, help="runs as many seeds as fit into this time instead")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--protocol", choices=PROTOCOLS, help="the group protocol; default: both")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutant", help="puts this mistake into the product first; all: one after the other")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each of all mutants")
    options = parser.parse_args()
    protocols = [options.protocol] if options.protocol else list(PROTOCOLS)
    if options.mutant:
        return try_mutants(options.mutant, options.limit, options.processes)
    if options.seed is not None:
        return max(repeat(options.seed, protocol) for protocol in protocols)
    return search(protocols, options.first, options.seeds, options.seconds, options.processes)


def repeat(seed: int, protocol: str) -> int:
    """Runs one seed with the product's log, and shrinks its failure."""
    with substituted():
        result = run(seed, protocol, verbose=True)
        print("\n".join(result.story))
        if result.failure is None:
            print(f"seed {seed}, {protocol}: nothing is broken")
            return 0
        report(result)
    return 1


def report(result: Result) -> None:
    """Prints what is broken, how to repeat it, and what remains of its story."""
    small = shrink(result)
    print(f"\n{result.failure}")
    print(f"Repeat it: make sim SEED={result.seed} PROTOCOL={result.protocol}")
    print(f"Its story, with {len(small.kept)} of {len(result.kept)} draws that are not ordinary:")
    print("\n".join(small.story[-60:]), f"\n         => {small.failure}", flush=True)


def block(work: tuple[str, int]) -> list[Result]:
    """Runs some seeds in a process of its own; returns them, with the stories of failures only."""
    protocol, first = work
    with substituted():
        results = [run(seed, protocol) for seed in range(first, first + BLOCK)]
    for result in results:
        if result.failure is None:
            result.story.clear()
            result.kept.clear()
    return results


def search(protocols: list[str], first: int, seeds: int, seconds: float | None, processes: int) -> int:
    """Runs seeds until their number or the time is reached; prints each failure."""
    began, runs, failed = time.monotonic(), 0, 0

    def work() -> Iterator[tuple[str, int]]:
        start = first
        while (seconds is None and start < first + seeds) or (seconds and time.monotonic() < began + seconds):
            for protocol in protocols:
                yield protocol, start
            start += BLOCK

    with get_context("fork").Pool(processes) as pool, substituted():
        for results in bounded(pool, work(), 2 * processes):
            for result in results:
                runs += 1
                if result.failure is not None:
                    failed += 1
                    report(result)
    took = time.monotonic() - began
    print(f"{runs} runs in {took:.0f} s, {runs / took * 60 / processes:.0f} a minute and process; {failed} failed")
    return 1 if failed else 0


def bounded(pool: object, work: Iterator[tuple[str, int]], most: int) -> Iterator[list[Result]]:
    """The results of the work, of which the pool gets only so many pieces in advance."""
    waiting = []
    for each in work:
        waiting.append(pool.apply_async(block, (each,)))  # type: ignore[attr-defined]
        if len(waiting) >= most:
            yield waiting.pop(0).get()
    for each in waiting:
        yield each.get()


def try_mutants(name: str, limit: float, processes: int) -> int:
    """Puts each mistake into a copy of the product, and searches until it is found."""
    missed = 0
    for mutant in MUTANTS:
        if name not in ("all", mutant.name):
            continue
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory)
            for part in ("spark_group_source", "tests"):
                (copy / part).symlink_to(PACKAGE.parent / part)
            (copy / "spark_group_source").unlink()
            subprocess.run(["cp", "-r", str(PACKAGE), str(copy)], check=True)
            apply(mutant, copy / "spark_group_source")
            found = find(copy, limit, processes, quiet=name == "all")
        print(f"{mutant.name:5} sentence {mutant.sentence:2}: {found or 'NOT FOUND'}: {mutant.breaks}", flush=True)
        missed += not found
    return 1 if missed else 0


FIND = """
import sys, time
from tests.simulation.scenario import PROTOCOLS, run
from tests.simulation.shrink import shrink
from tests.simulation.substitution import substituted
began = time.monotonic()
with substituted():
    seed = 0
    while time.monotonic() < began + float(sys.argv[1]):
        seed += 1
        for protocol in PROTOCOLS:
            result = run(seed, protocol)
            if result.failure is not None:
                print(f"{protocol} seed {seed}, {time.monotonic() - began:.0f} s, {result.failure}")
                if sys.argv[2] != "True":
                    print("\\n".join(shrink(result).story[-40:]))
                sys.exit()
"""


def find(copy: Path, limit: float, processes: int, *, quiet: bool) -> str:
    """The seed with which a copy of the product fails, the time it took and what was broken; empty if none did."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-c", FIND, str(limit), str(quiet)]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr[-500:]).strip()


if __name__ == "__main__":
    sys.exit(main())
