"""Lookups of a group from outside, on a fake Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_group_source.errors import BrokerUnavailable, GroupError, GroupSourceError, OptionError
from spark_group_source.group.description import GroupDescription
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.lag.group_report import snapshot
from spark_group_source.lag.model import Sample
from tests.fake import FakeKafka, Fault
from tests.fake.classic_group import FakeMember

GROUP = "g"
ALLOWED_REQUESTS = {
    *("ApiVersions", "ClusterId", "Metadata", "ListOffsets", "FindCoordinator", "OffsetFetch", "DescribeGroups"),
    "Fetch",
}


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Topics t of three partitions, with commits in two of them, and u with one."""
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", partitions=3)
        running.create_topic("u")
        for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
            running.produce(topic, ["x"] * 10, partition)
        running.commit(GROUP, {("t", 0): 4, ("t", 1): 10, ("u", 0): 1})
        yield running


def client(fake: FakeKafka, timeout: float = 60.0, /, **more: str) -> GroupLagClient:
    options = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": GROUP}
    topics = {} if "assign" in more or "subscribePattern" in more else {"subscribe": "t"}
    return GroupLagClient(options | topics | more, timeout, now=lambda: 7.0)


def lags(sample: Sample) -> dict[str, tuple[int, int, int]]:
    return {str(each.tp): (each.position, each.end, each.lag) for each in sample.partitions()}


def test_lag_is_the_end_offset_minus_the_committed_offset(fake: FakeKafka) -> None:
    with closing(client(fake)) as group:
        sample = group.sample()
        assert (sample.at, lags(sample)) == (7.0, {"t-0": (4, 10, 6), "t-1": (10, 10, 0)})
        fake.produce("t", ["more"] * 5, 1)
        fake.commit(GROUP, {("t", 0): 10})
        assert lags(group.sample()) == {"t-0": (10, 10, 0), "t-1": (10, 15, 5)}


def test_a_lookup_changes_nothing_joins_no_group_and_sends_one_request_to_each_broker(fake: FakeKafka) -> None:
    before = dict(fake.group(GROUP).offsets)
    with closing(client(fake)) as group:
        group.sample()
        group.describe()
        assert {api for api, _, _ in fake.requests} <= ALLOWED_REQUESTS
        fake.requests.clear()
        group.sample()
    assert sorted(api for api, _, _ in fake.requests) == ["ListOffsets", "ListOffsets", "OffsetFetch"]
    assert fake.group(GROUP).offsets == before
    assert not fake.group(GROUP).members


def test_only_the_partitions_of_the_options_that_exist_are_looked_up(fake: FakeKafka) -> None:
    def looked_up(**given: str) -> set[str]:
        with closing(client(fake, **given)) as group:
            return set(lags(group.sample()))

    assert looked_up(subscribePattern="^u") == {"u-0"}
    assert looked_up(assign='{"t": [1, 2]}') == {"t-1"}
    fake.delete_topic("u")
    assert looked_up(subscribePattern=".*") == {"t-0", "t-1"}


def test_with_read_committed_the_end_offset_is_the_last_stable_offset(fake: FakeKafka) -> None:
    fake.logs["t"][0].stable = 8
    with closing(client(fake, **{"kafka.isolation.level": "read_committed"})) as group:
        assert lags(group.sample())["t-0"] == (4, 8, 4)


def test_the_lag_of_a_partition_whose_leader_does_not_answer_is_unknown(fake: FakeKafka) -> None:
    with closing(client(fake, 0.5)) as group:
        group.sample()
        fake.brokers[2].hung = True
        sample = group.sample()
    fake.brokers[2].hung = False
    known, unknown = set(lags(sample)), {str(tp) for tp in sample.unknown()}
    assert (known | unknown, len(known), len(unknown)) == ({"t-0", "t-1"}, 1, 1)


def test_a_coordinator_that_keeps_rejecting_requests_is_an_error_that_says_why(fake: FakeKafka) -> None:
    with closing(client(fake, 0.5)) as group:
        fake.next("OffsetFetch", Fault(error=30))
        with pytest.raises(GroupError, match="READ on the group"):
            group.sample()
        fake.next("OffsetFetch", Fault(error=14), times=1000)
        with pytest.raises(BrokerUnavailable, match="coordinator"):
            group.sample()


@pytest.mark.parametrize(
    ("group", "suggestion"),
    [
        ("order-to-lake", "Did you mean 'orders-to-lake'?"),
        ("nobody", "This cluster has the groups g, orders-to-lake. Its query has not started yet"),
    ],
)
def test_the_error_of_a_group_that_does_not_exist_names_those_that_do(
    fake: FakeKafka, group: str, suggestion: str
) -> None:
    fake.commit("orders-to-lake", {("t", 0): 4})
    with closing(client(fake, **{"kafka.group.id": group})) as other:
        with pytest.raises(GroupSourceError) as raised:
            snapshot(other)
        assert suggestion in str(raised.value)
        fake.next("ListGroups", Fault(drop="before"), times=10)
        with pytest.raises(GroupSourceError) as raised:
            snapshot(other)
    assert "no committed offsets. Its query has not started yet" in str(raised.value)


def test_members_and_their_partitions_are_described(fake: FakeKafka) -> None:
    with closing(client(fake, **{"kafka.group.id": "nobody"})) as group:
        assert group.describe() == GroupDescription("Dead", "", ())
        assert group.sample().partitions() == ()
    with closing(client(fake)) as group:
        assert group.describe() == GroupDescription("Empty", "", ())
        fake.group(GROUP).classic.members["m"] = FakeMember("m", "static-1", {}, 1.0)
        (member,) = group.describe().members
        assert (member.client_id, member.host, member.instance_id) == ("client", "/127.0.0.1", "static-1")
        assert member.partitions == frozenset()


def test_a_group_id_is_required() -> None:
    with pytest.raises(OptionError, match=r"kafka\.group\.id"):
        GroupLagClient({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
