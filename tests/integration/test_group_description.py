"""Groups with members of both group protocols, as the probe, the report, ``assign`` and the warning see them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from spark_group_source.__main__ import main
from spark_group_source.errors import GroupError
from spark_group_source.group.description import GroupDescription, MemberDescription
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.offsets import BatchOffset
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.driver import Driver
from spark_group_source.testing import EmbeddedKafka
from tests.conftest import needs_kip_848
from tests.integration.query_process import eventually

pytestmark = [pytest.mark.core, needs_kip_848]
APPLICATION = "local-1"


@pytest.fixture
def options(kafka: EmbeddedKafka, unique: Callable[[str], str], group: str) -> dict[str, str]:
    """Options of a group that reads a topic of four partitions with ten records each."""
    topic = kafka.create_topic(unique("topic"), partitions=4)
    for number in range(4):
        kafka.produce(topic, ["x"] * 10, partition=number)
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": group}
    return servers | {"subscribe": topic, "startingOffsets": "earliest"}


@contextmanager
def member(options: dict[str, str], name: str, protocol: str, logged: BatchOffset | None = None) -> Iterator[Driver]:
    """A query that is a member while the ``with`` block runs. ``logged`` is where its checkpoint stands."""
    parsed = parse_options({**options, "kafka.group.protocol": protocol})
    client_id = f"{name}-{APPLICATION}-1"
    with closing(Driver(parsed.with_client_id(client_id), application_id=APPLICATION)) as driver:
        driver.start(logged or BatchOffset())
        driver.await_assignment()
        yield driver


def partitions(*members: MemberDescription) -> list[tuple[str, int]]:
    return sorted(tp for each in members for tp in each.partitions)


def test_a_group_with_members_of_both_protocols_is_described_before_during_and_after_its_conversion(
    options: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_group_source.query.query_log")
    topic = options["subscribe"]
    static = {"kafka.group.instance.id": "i", "leaveGroupOnStop": "true"}
    every = [(topic, number) for number in range(4)]
    with closing(GroupLagClient(options)) as probe:

        def settled(protocol: str, members: int) -> GroupDescription:
            """Waits until the group is stable, and has this protocol and this number of members with partitions."""

            def is_settled() -> bool:
                group = probe.describe()
                owners = [each for each in group.members if each.partitions]
                return (group.protocol, group.state, len(owners)) == (protocol, "Stable", members)

            eventually(is_settled)
            return probe.describe()

        assert probe.describe() == GroupDescription("Dead", "", ())
        with member(options | static, "old", "classic"):
            (old,) = settled("classic", 1).members
            assert (old.client_id, old.host, old.instance_id) == ("old-local-1-1", "/127.0.0.1", "i")
            assert (old.protocol, old.epoch, set(old.topics)) == ("classic", None, {topic})
            assert partitions(old) == every
            with member(options, "new", "consumer"):
                described = settled("consumer", 2)
                new, old = described.members
                assert described.assignor == "uniform"
                assert (new.client_id, new.host, new.instance_id) == ("new-local-1-1", "/127.0.0.1", None)
                assert (new.protocol, old.protocol, old.instance_id) == ("consumer", "classic", "i")
                assert new.topics == old.topics == {topic}
                assert new.epoch is not None
                assert new.epoch > 0
                assert partitions(new, old) == every
                assert "2 members of this application share this group, among them old-local-1-1" in caplog.text
                check_report(options, tmp_path)
                with pytest.raises(GroupError, match=r"2 member\(s\): new-local-1-1 at 127\.0\.0\.1, old-local-1-1"):
                    start_assigned(options)
            assert partitions(*settled("classic", 1).members) == every
        eventually(lambda: probe.describe() == GroupDescription("Empty", "", ()))
        with member(options, "new", "consumer"):
            (alone,) = settled("consumer", 1).members
            assert partitions(alone) == every
        eventually(lambda: not probe.describe().members)
        assert (probe.describe().state, probe.describe().protocol) == ("Empty", "consumer")
    start_assigned(options)


def check_report(options: dict[str, str], directory: Path) -> None:
    """The page names both members, their protocols, and the owner of each partition."""
    page = directory / "report.html"
    servers, group = options["kafka.bootstrap.servers"], options["kafka.group.id"]
    arguments = ["--bootstrap-servers", servers, "--group", group, "--output", str(page), "--seconds", "0.1"]
    assert main(["report", *arguments]) == 0
    text = page.read_text()
    assert "Stable, protocol consumer, assignor uniform, 2 member(s)" in text
    for protocol in ("consumer", "classic"):
        assert text.count(f"<td>{protocol}</td>") == 1
    for owner in ("new", "old"):
        assert text.count(f"<td>{owner}-local-1-1</td>") == 3


def start_assigned(options: dict[str, str]) -> None:
    """Starts a query that assigns itself a partition of the group, and ends it."""
    without_topics = {name: value for name, value in options.items() if name != "subscribe"}
    parsed = parse_options(without_topics | {"assign": f'{{"{options["subscribe"]}": [0]}}'})
    with closing(Driver(parsed.with_client_id("assigned"))) as driver:
        driver.start(BatchOffset())


def test_a_query_changes_its_protocol_in_both_directions_and_keeps_its_checkpoint(
    kafka: EmbeddedKafka, options: dict[str, str]
) -> None:
    logged, read = BatchOffset(), 0
    for end, protocol in zip((10, 11, 12), ("classic", "consumer", "classic"), strict=True):
        with member(options, "query", protocol, logged) as driver:
            while set(logged.ends().values()) != {end}:
                planned = driver.plan_batch(logged, None)
                read += 0 if planned == logged else sum(each.end - each.start for each in planned.reads())
                logged = planned
            driver.complete(logged)
        assert (read, set(kafka.committed(options["kafka.group.id"]).values())) == (4 * end, {end})
        for number in range(4):
            kafka.produce(options["subscribe"], ["more"], partition=number)
