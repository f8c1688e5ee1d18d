"""Compares the two group protocols: how long members wait in each, and how often they ask the brokers.

    python jobs/group_protocols.py                                     (about ten minutes)
    python jobs/group_protocols.py --only rebalance --members 5 --partitions 100 --kafka-version 4.3.1

An embedded Kafka and all members run on this machine, without Spark. Brokers and members have their default timeouts
and intervals. A partition pauses from its revocation until its next owner may read it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
import uuid

from protocol_costs import first_row
from protocol_costs.rebalance import Group

from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.ivy import KAFKA_VERSION

DEFAULTS = {
    "group.initial.rebalance.delay.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "5000",
    "group.consumer.heartbeat.interval.ms": "5000",
    "group.consumer.assignment.interval.ms": "1000",
}
"""The brokers' own defaults, which are shorter in an embedded Kafka."""

PROTOCOLS: dict[str, dict[str, str]] = {
    "classic": {},
    "classic, range": {"kafka.partition.assignment.strategy": "range"},
    "consumer": {"kafka.group.protocol": "consumer"},
}
"""Options by protocol. With ``range``, an eager assignor, members give up all partitions in each rebalance."""

HEARTBEAT_INTERVAL_S = 5.0
"""The longer one of both protocols."""


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints the results. Exit code 0."""
    args = _parser().parse_args(arguments)
    with EmbeddedKafka(config=DEFAULTS, version=args.kafka_version) as kafka:
        print(f"Kafka {args.kafka_version}")
        if args.only in (None, "first-row"):
            topic = kafka.create_topic("first-row", first_row.PARTITIONS)
            for name in ("classic", "consumer"):
                _print_first_rows(kafka, topic, name, args.runs)
        if args.only in (None, "rebalance"):
            topic = kafka.create_topic("rebalance", args.partitions)
            for name in PROTOCOLS:
                _print_rebalances(kafka, topic, name, args)
    return 0


def _print_first_rows(kafka: EmbeddedKafka, topic: str, protocol: str, runs: int) -> None:
    for what, measure in (("an empty group", first_row.alone), ("a group with a member", first_row.beside_another)):
        seconds = [measure(kafka, _options(kafka, topic, protocol)) for _ in range(runs)]
        print(f"{protocol}: from the join to the first row in {what}: {_summary(seconds)}", flush=True)


def _print_rebalances(kafka: EmbeddedKafka, topic: str, protocol: str, args: argparse.Namespace) -> None:
    group = Group(_options(kafka, topic, protocol), args.partitions)
    for _ in range(args.members):
        group.join()
    group.settle()
    changes = {"joins": group.join, "leaves": group.leave}
    still: dict[str, list[float]] = {what: [] for what in changes}
    seconds: dict[str, list[float]] = {what: [] for what in changes}
    for _ in range(args.runs):
        for what, change in changes.items():
            time.sleep(random.uniform(0.0, HEARTBEAT_INTERVAL_S))  # since the last rebalance all heartbeats coincide
            group.restart_counts()
            change()
            group.settle()
            still[what] += group.stood_still()
            seconds[what].append(group.seconds_to_last_change())
    for what in changes:
        count = len(still[what]) / args.runs
        print(f"{protocol}: a member {what}: {count:.0f} partition(s) pause: {_summary(still[what])}", flush=True)
        print(f"{protocol}: a member {what}: until all is over: {_summary(seconds[what])}", flush=True)
    group.restart_counts()
    time.sleep(args.seconds)
    print(f"{protocol}: idle: {group.requests_per_minute():.1f} requests a minute and member", flush=True)
    for _ in range(args.members):
        group.leave()


def _options(kafka: EmbeddedKafka, topic: str, protocol: str) -> dict[str, str]:
    """The options of a new group."""
    group = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": f"group-{uuid.uuid4().hex[:8]}"}
    return group | {"subscribe": topic, "startingOffsets": "earliest"} | PROTOCOLS[protocol]


def _summary(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s" if seconds else "none"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="group_protocols", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", choices=("first-row", "rebalance"), help="one of the two measurements (default: both)")
    add("--kafka-version", default=KAFKA_VERSION, help="Kafka 4.0 or later (default: %(default)s)")
    add("--runs", type=int, default=3, help="how often each change is measured (default: %(default)s)")
    add("--members", type=int, default=20, help="members of the group that rebalances (default: %(default)s)")
    add("--partitions", type=int, default=1000, help="partitions of that group (default: %(default)s)")
    add("--seconds", type=float, default=60.0, help="how long to count an idle group's requests (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
