"""Searches the product that is imported for a mistake, and prints what it finds as JSON: see ``__main__``."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation.scenario import PROTOCOLS, Result, run
from tests.simulation.shrink import shrink
from tests.simulation.substitution import substituted

FILE = Path(__file__).with_name("seeds.json")
"""By mutant, where the search for it begins."""

RUNS = 20
"""The seeds that are searched again for a mistake: a change of the product may draw otherwise, and move it a little."""


@dataclass(frozen=True)
class Begin:
    """Where a search begins: the first seed of a protocol, and what some draws shall be (see ``Chance``)."""

    protocol: str
    seed: int
    aim: dict[str, Any]


def read_begins() -> dict[str, Begin]:
    """Where the searches begin that found a mistake before."""
    if not FILE.exists():
        return {}
    return {
        name: Begin(each["protocol"], each["seed"], each["aim"]) for name, each in json.loads(FILE.read_text()).items()
    }


def write_begins(begins: dict[str, Begin]) -> None:
    """Keeps where searches begin, a line for each."""
    lines: list[str] = []
    for name, each in sorted(begins.items()):
        lines.append(f"{json.dumps(name)}: {json.dumps(vars(each))}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def find(name: str, seconds: float) -> dict[str, Any]:
    """Searches the kept seeds of this mistake, and then others from 1 on, until a run fails.

    ``seconds`` are of processor time, so that a busy machine searches as long as an idle one.
    """
    began, runs, aim = time.process_time(), 0, {}
    begin = read_begins().get(name)
    if begin is not None:
        aim = begin.aim
        for seed in range(begin.seed, begin.seed + RUNS):
            result = run(seed, begin.protocol, aim=aim)
            if result.failure is not None:
                return told(result, aim, f"run {seed - begin.seed + 1} of its seeds")
    seed = 0
    while time.process_time() < began + seconds:
        seed += 1
        for protocol in PROTOCOLS:
            runs += 1
            result = run(seed, protocol, aim=aim)
            if result.failure is not None:
                return told(result, aim, f"{runs} runs, {time.process_time() - began:.0f} s")
    return {}


def told(result: Result, aim: dict[str, Any], how: str) -> dict[str, Any]:
    """What was found, with the story that is left of it."""
    broken = f"{result.failure}".partition("\n")[0]
    return {
        "begin": {"protocol": result.protocol, "seed": result.seed, "aim": aim},
        "broken": broken,
        "story": shrink(result).story[-40:],
        "how": f"{how}, {result.protocol} seed {result.seed}, {broken}",
    }


if __name__ == "__main__":
    with substituted():
        found = find(sys.argv[1], float(sys.argv[2]))
    print(json.dumps(found))
