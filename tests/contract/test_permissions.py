"""Permissions that are missing for a moment, or on one topic, end no query that reads others. On the fake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_group_source import grace
from spark_group_source.errors import BrokerError, GroupError, TopicError
from spark_group_source.query.available_now import AvailableNowTarget
from tests.contract.conftest import Bench, Query, eventually
from tests.fake import FakeKafka, Fault
from tests.fake.handlers import DESCRIBE, READ

OFTEN = 10_000
OPTIONS: dict[str, Any] = {"kafka.metadata.max.age.ms": "1000"}


def until(query: Query, condition: Callable[[], object], what: str) -> None:
    """Runs batches until the condition holds."""
    eventually(lambda: (query.advance(), condition())[1], what)


def assert_goes_on(bench: Bench, query: Query, end: int = 1) -> None:
    """The query still reads the bench's own topic, up to this end after one more record, and commits."""
    bench.produce(1)
    until(query, lambda: bench.committed().get(0) == end, "the commit")


def read_of(query: Query, topic: str) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in query.read if each.topic == topic]


@pytest.mark.parametrize("api", ["Heartbeat", "JoinGroup", "OffsetCommit", "FindCoordinator", "OffsetFetch"])
def test_a_query_survives_that_read_on_its_group_is_missing_for_a_while(
    on_fake: Bench, fake: FakeKafka, api: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = on_fake.start().idle()
    on_fake.next(api, Fault(error=30), OFTEN)
    if api in ("JoinGroup", "OffsetFetch"):
        on_fake.expire(query)
    if api == "FindCoordinator":
        fake.coordinator = 2
    on_fake.produce(2)
    until(query, lambda: "no longer has READ on group" in caplog.text, "the warning")
    fake.clear_faults()
    assert_goes_on(on_fake, query, end=3)
    assert caplog.text.count("no longer has READ on group") == 1
    assert "Grant the principal READ on the group" in caplog.text


def test_a_group_that_may_not_be_read_for_longer_ends_the_query(
    on_fake: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grace, "GRACE_PERIOD", 3.0)
    query = on_fake.start().idle()
    on_fake.next("Heartbeat", Fault(error=30), OFTEN)
    with pytest.raises(GroupError, match=r"READ on group '.*' has been missing for \d s\. Grant the principal READ"):
        until(query, lambda: False, "the error")


@pytest.mark.parametrize("denied", [READ, DESCRIBE], ids=["READ", "DESCRIBE"])
def test_a_new_topic_that_may_not_be_read_is_left_out_until_it_may_be(
    on_fake: Bench, fake: FakeKafka, denied: int, caplog: pytest.LogCaptureFixture
) -> None:
    query = on_fake.start(subscribePattern=f"{on_fake.topic}.*", **OPTIONS).idle()
    new = f"{on_fake.topic}-new"
    fake.denied[new] = denied
    fake.create_topic(new, 1)
    fake.produce(new, ["v"] * 3)
    if denied == READ:
        until(query, lambda: f"no READ on topic '{new}'" in caplog.text, "the warning")
    assert_goes_on(on_fake, query)
    assert read_of(query, new) == []
    del fake.denied[new]
    until(query, lambda: fake.group(on_fake.group).offsets.get((new, 0), (0,))[0] == 3, "the topic to be read")
    assert read_of(query, new) == [(0, 3)]


@pytest.mark.parametrize("pattern", [False, True], ids=["subscribe", "pattern"])
@pytest.mark.parametrize("denied", [READ, DESCRIBE], ids=["READ", "DESCRIBE"])
def test_one_topic_that_may_not_be_read_for_a_while_stops_no_other(
    on_fake: Bench, fake: FakeKafka, denied: int, pattern: bool, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{on_fake.topic}-other"
    fake.create_topic(other, 1)
    named: dict[str, Any] = {"subscribe": f"{on_fake.topic},{other}"}
    matched: dict[str, Any] = {"subscribePattern": f"{on_fake.topic}.*"}
    query = on_fake.start(**(matched if pattern else named)).idle()
    fake.produce(other, ["v"] * 2)
    query.begin()
    fake.denied[other] = denied
    query.finish()
    until(query, lambda: f"READ on topic '{other}'" in caplog.text, "the warning")
    fake.produce(other, ["v"] * 1)
    assert_goes_on(on_fake, query)
    assert read_of(query, other) == [(0, 2)]
    del fake.denied[other]
    until(query, lambda: fake.group(on_fake.group).offsets[other, 0][0] == 3, "the topic to be read")
    assert read_of(query, other) == [(0, 2), (2, 3)]


def test_a_topic_that_another_member_had_may_not_be_read_for_a_while_when_a_query_gets_it(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{on_fake.topic}-other"
    fake.create_topic(other, 1)
    named: dict[str, Any] = {"subscribe": f"{on_fake.topic},{other}"}
    holders = [on_fake.start(**named).idle() for _ in range(5)]

    def each_owns_one() -> bool:
        return all(len(each.advance().me.readable) == 1 for each in holders)

    eventually(each_owns_one, "one partition for each")
    heir = on_fake.join(None, **named)
    owner = next(each for each in holders if other in {tp.topic for tp in each.me.readable})
    fake.denied[other] = READ
    owner.close()
    until(heir, lambda: f"no longer has READ on topic '{other}'" in caplog.text, "the warning")
    del fake.denied[other]
    fake.produce(other, ["v"])
    until(heir, lambda: read_of(heir, other) == [(0, 1)], "the topic to be read")


@pytest.mark.parametrize("pattern", [False, True], ids=["subscribe", "pattern"])
def test_a_partition_starts_although_the_commits_of_another_topic_may_not_be_read(
    on_fake: Bench, fake: FakeKafka, pattern: bool
) -> None:
    """A query with a new checkpoint also looks up the commits of partitions that other members own."""
    other = f"{on_fake.topic}-other"
    fake.create_topic(other, 1)
    named: dict[str, Any] = {"subscribe": f"{on_fake.topic},{other}"}
    matched: dict[str, Any] = {"subscribePattern": f"{on_fake.topic}.*"}
    options = matched if pattern else named
    holders = [on_fake.start(**options).idle() for _ in range(5)]

    def each_owns_one() -> bool:
        return all(len(each.advance().me.readable) == 1 for each in holders)

    eventually(each_owns_one, "one partition for each")
    heir = on_fake.query(None, **options).start()
    owner = next(each for each in holders if other not in {tp.topic for tp in each.me.readable})
    fake.denied[other] = DESCRIBE
    owner.close()
    holders.remove(owner)
    on_fake.produce(1, 1, 1, 1)

    def all_is_read() -> bool:
        for each in holders:
            each.advance()
        return on_fake.committed() == dict.fromkeys(range(4), 1)

    until(heir, all_is_read, "the other topic to be read")
    assert heir.read


def test_a_topic_of_a_pattern_that_may_not_be_described_at_a_restart_counts_as_no_deleted_one(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{on_fake.topic}-other"
    fake.create_topic(other, 1)
    fake.produce(other, ["v"] * 2)
    pattern: dict[str, Any] = {"subscribePattern": f"{on_fake.topic}.*", **OPTIONS}
    first = on_fake.start(**pattern).idle()
    first.poll()
    first.close()
    fake.denied[other] = DESCRIBE
    query = on_fake.start(first.end, **pattern)
    assert f"this query may no longer describe {other}" in caplog.text
    assert_goes_on(on_fake, query)
    del fake.denied[other]
    fake.produce(other, ["v"])
    until(query, lambda: read_of(query, other) == [(2, 3)], "the topic to be read")


def test_a_run_to_the_end_waits_for_no_topic_of_a_pattern_whose_permission_is_taken(
    on_fake: Bench, fake: FakeKafka
) -> None:
    other = f"{on_fake.topic}-other"
    fake.create_topic(other, 1)
    fake.produce(other, ["v"] * 2)
    on_fake.produce(2)
    query = on_fake.query(subscribePattern=f"{on_fake.topic}.*").start(available_now=True)
    query.begin()
    fake.denied[other] = DESCRIBE
    query.finish()
    query.until_end()
    assert on_fake.committed()[0] == 2


@pytest.mark.parametrize("denied_in", ["planning", "batch"])
def test_a_run_to_the_end_waits_for_a_named_topic_whose_permission_is_missing_for_a_while(
    on_fake: Bench, fake: FakeKafka, monkeypatch: pytest.MonkeyPatch, denied_in: str
) -> None:
    other = f"{on_fake.topic}-other"
    fake.create_topic(other, 1)
    fake.produce(other, ["v"] * 2)
    on_fake.produce(2)
    query = on_fake.query(subscribe=f"{on_fake.topic},{other}").start(available_now=True)
    pause, pauses = AvailableNowTarget.pause, []

    def until_granted(target: AvailableNowTarget) -> None:
        pauses.append(target)
        if len(pauses) == 5:
            del fake.denied[other]
        pause(target)

    monkeypatch.setattr(AvailableNowTarget, "pause", until_granted)
    if denied_in == "batch":
        query.begin()
    fake.denied[other] = DESCRIBE
    if denied_in == "batch":
        query.finish()
    query.until_end()
    assert read_of(query, other) == [(0, 2)]
    assert fake.group(on_fake.group).offsets[other, 0][0] == 2


def test_a_run_to_the_end_leaves_out_a_topic_of_a_pattern_that_may_not_be_described_when_it_begins(
    on_fake: Bench, fake: FakeKafka
) -> None:
    other = f"{on_fake.topic}-other"
    fake.create_topic(other, 1)
    on_fake.produce(2)
    query = on_fake.query(subscribePattern=f"{on_fake.topic}.*").start(available_now=True)
    fake.denied[other] = DESCRIBE
    query.until_end()
    assert on_fake.committed()[0] == 2


def test_a_named_topic_that_may_not_be_read_ends_the_start_at_once_and_a_run_after_the_period(
    on_fake: Bench, fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grace, "GRACE_PERIOD", 3.0)
    fake.denied[on_fake.topic] = READ
    with pytest.raises(TopicError, match="Grant the principal DESCRIBE and READ"):
        on_fake.start()
    del fake.denied[on_fake.topic]
    query = on_fake.start().idle()
    fake.denied[on_fake.topic] = READ
    on_fake.produce(1)
    query.run_batch()
    with pytest.raises(BrokerError, match=r"READ on topic '.*' has been missing for \d+ s"):
        until(query, lambda: False, "the error")


def test_a_run_to_the_end_leaves_a_topic_out_that_may_not_be_read(on_fake: Bench, fake: FakeKafka) -> None:
    new = f"{on_fake.topic}-new"
    fake.denied[new] = READ
    fake.create_topic(new, 1)
    fake.produce(new, ["v"] * 3)
    on_fake.produce(2)
    query = on_fake.query(subscribePattern=f"{on_fake.topic}.*").start(available_now=True)
    query.until_end()
    assert {each.topic for each in query.read} == {on_fake.topic}


@pytest.mark.one_protocol("consumer", reason="only these heartbeats name topics")
def test_a_member_that_joins_again_leaves_out_a_topic_that_it_may_not_describe(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{on_fake.topic}-other"
    fake.create_topic(other, 1)
    query = on_fake.start(subscribe=f"{on_fake.topic},{other}").idle()
    fake.denied[other] = DESCRIBE
    on_fake.expire(query)
    until(query, lambda: f"DESCRIBE on topic '{other}'" in caplog.text, "the warning")
    assert_goes_on(on_fake, query)
    del fake.denied[other]
    fake.produce(other, ["v"] * 2)
    until(query, lambda: read_of(query, other) == [(0, 2)], "the topic to be read")
