"""The command ``make sim``: runs seeds, and tells the story of one that fails.

    SEED=17 PROTOCOL=consumer   repeats one run, with the product's log
    SEEDS=1000                  runs as many seeds of each kind, or SECONDS=3600 as many as fit
    MUTANT=A1                   runs until a mistake that is put into the product is found; MUTANT=all tries each

A failure prints the command that repeats it, and its story with all that does not matter left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.simulation.find import Begin, read_begins, write_begins
from tests.simulation.mutants import MUTANTS, Mutant, apply
from tests.simulation.scenario import KINDS, Result, run
from tests.simulation.shrink import shrink
from tests.simulation.substitution import substituted

BLOCK = 20
PACKAGE = Path(__file__).parents[2] / "spark_group_source"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make sim", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="repeats this run only")
    parser.add_argument("--seeds", type=int, default=500, help="runs of each kind")
    parser.add_argument("--seconds", type=float, help="runs as many seeds as fit into this time instead")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--protocol", choices=KINDS, help="the group protocol, or reads; default: all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutant", help="puts this mistake into the product first; all: one after the other")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of processor time for each of all mutants")
    options = parser.parse_args()
    protocols = [options.protocol] if options.protocol else list(KINDS)
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

    with ProcessPoolExecutor(processes, get_context("fork")) as pool, substituted():
        for results in bounded(pool, work(), 2 * processes):
            for result in results:
                runs += 1
                if result.failure is not None:
                    failed += 1
                    report(result)
    took = time.monotonic() - began
    print(f"{runs} runs in {took:.0f} s, {runs / took * 60 / processes:.0f} a minute and process; {failed} failed")
    return 1 if failed else 0


def bounded(pool: ProcessPoolExecutor, work: Iterator[tuple[str, int]], most: int) -> Iterator[list[Result]]:
    """The results of the work, of which the pool gets only so many pieces in advance."""
    waiting: deque[Future[list[Result]]] = deque()
    for each in work:
        waiting.append(pool.submit(block, each))
        if len(waiting) >= most:
            yield waiting.popleft().result()
    for future in waiting:
        yield future.result()


def try_mutants(name: str, limit: float, processes: int) -> int:
    """Puts each mistake into a copy of the product, and searches until it is found; keeps the seeds that find it."""
    chosen = [mutant for mutant in MUTANTS if name in ("all", mutant.name)]
    begins, missed = read_begins(), 0
    with ThreadPoolExecutor(processes) as pool:
        for mutant, found in zip(chosen, pool.map(lambda each: try_mutant(each, limit), chosen), strict=True):
            if not found or breaks_without(Begin(**found["begin"])):
                missed += 1
                print(f"{mutant.name:4} {mutant.sentence:2} NOT FOUND: {mutant.breaks}", flush=True)
                continue
            print(f"{mutant.name:4} {mutant.sentence:2} {found['how']}: {mutant.breaks}", flush=True)
            if name != "all":
                print("\n".join(found["story"]), f"\n         => {found['broken']}")
            begins[mutant.name] = Begin(**found["begin"])
            write_begins(begins)
    print(f"{len(chosen) - missed} of {len(chosen)} mistakes are found")
    return 1 if missed else 0


def breaks_without(begin: Begin) -> bool:
    """Whether the product breaks without the mistake, too: then the run shows something else, and tells its seed."""
    with substituted():
        result = run(begin.seed, begin.protocol, aim=begin.aim)
    if result.failure is None:
        return False
    print(f"Not a mistake: {result.protocol} seed {result.seed}: {result.failure}", flush=True)
    return True


def try_mutant(mutant: Mutant, limit: float) -> dict[str, Any]:
    """What the simulation finds in a copy of the product with this mistake, in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        for part in ("spark_group_source", "tests"):
            shutil.copytree(PACKAGE.parent / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        apply(mutant, copy / "spark_group_source")
        command = [sys.executable, "-m", "tests.simulation.find", mutant.name, str(limit)]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
