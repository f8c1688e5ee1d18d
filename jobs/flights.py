"""Prints the flight delays by carrier and hour from the Parquet of group_to_parquet, and checks for duplicates.

python jobs/flights.py /data/flights --expect 336776
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

BAR_WIDTH = 30
CARRIERS = {
    "9E": "Endeavor", "AA": "American", "AS": "Alaska", "B6": "JetBlue", "DL": "Delta", "EV": "ExpressJet",
    "F9": "Frontier", "FL": "AirTran", "HA": "Hawaiian", "MQ": "Envoy", "OO": "SkyWest", "UA": "United",
    "US": "US Airways", "VX": "Virgin America", "WN": "Southwest", "YV": "Mesa",
}  # fmt: skip


class Delay(NamedTuple):
    """The flights with one value of a column, and their mean departure delay in minutes."""

    value: Any
    flights: int
    mean: float


def main(arguments: list[str] | None = None) -> int:
    """Prints the report; returns 1 if a flight is missing or duplicated."""
    parser = argparse.ArgumentParser(prog="flights", description=__doc__)
    parser.add_argument("output", help="output directory of group_to_parquet")
    parser.add_argument("--expect", type=int, help="expected number of flights")
    args = parser.parse_args(arguments)
    flights = read(args.output)
    carriers = sorted(delays(flights, "carrier"), key=lambda row: row.mean, reverse=True)
    by_carrier = [(f"{row.value} {CARRIERS.get(row.value, '')}", row) for row in carriers]
    print("\n".join(table("carrier", by_carrier)), end="\n\n")
    hours = sorted(delays(flights, "hour"), key=lambda row: row.value)
    by_hour = [(f"{row.value:>2}:00", row) for row in hours]
    print("\n".join(table("hour of departure", by_hour)), end="\n\n")
    counts = count(flights)
    print("\n".join(f"{number:>9,}  {what}" for what, number in counts.items()))
    expected = args.expect
    if expected is None:
        expected = counts["rows"]
    if set(counts.values()) != {expected}:
        print(f"NOT each flight once: expected {expected:,} of each", file=sys.stderr)
        return 1
    print("each flight is there exactly once")
    return 0


def read(output: str) -> Any:
    """The Parquet as a ``pyarrow.Table``."""
    import pyarrow.dataset as ds

    wanted = ["id", "carrier", "hour", "dep_delay", "topic", "partition", "offset"]
    return ds.dataset(output, format="parquet").to_table(columns=wanted)


def count(flights: Any) -> dict[str, int]:
    """The number of rows, of distinct Kafka offsets and of distinct flight ids."""
    return {
        "rows": flights.num_rows,
        "different Kafka offsets": flights.group_by(["topic", "partition", "offset"]).aggregate([]).num_rows,
        "different flights": flights.group_by(["id"]).aggregate([]).num_rows,
    }


def delays(flights: Any, by: str) -> list[Delay]:
    """The departure delays by the values of one column; cancelled flights count, without a delay."""
    grouped = flights.group_by([by]).aggregate([("id", "count"), ("dep_delay", "mean")])
    columns = [grouped.column(name).to_pylist() for name in (by, "id_count", "dep_delay_mean")]
    return [Delay(value, number, mean or 0.0) for value, number, mean in zip(*columns, strict=True)]


def table(title: str, rows: Sequence[tuple[str, Delay]]) -> Iterable[str]:
    """The lines of a table with a bar for each mean delay."""
    maximum = max((row.mean for _, row in rows), default=0.0) or 1.0
    yield f"{title:<19} {'flights':>8}  mean delay, minutes"
    for label, row in rows:
        bar = "█" * round(BAR_WIDTH * max(0.0, row.mean) / maximum)
        yield f"{label:<19} {row.flights:>8,}  {row.mean:5.1f} {bar}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
