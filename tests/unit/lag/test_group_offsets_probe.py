"""A look at a group from outside, on a fake Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_group_source.errors import BrokerUnavailable, GroupError, GroupSourceError, OptionError
from spark_group_source.group.description import GroupDescription
from spark_group_source.lag.group_offsets_probe import GroupOffsetsProbe
from spark_group_source.lag.sample import Sample
from spark_group_source.testing.fake import FakeKafka, Fault
from spark_group_source.testing.fake.group import FakeMember

GROUP = "g"
LOOKS = {"ApiVersions", "Metadata", "ListOffsets", "FindCoordinator", "OffsetFetch", "DescribeGroups"}


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


def look(fake: FakeKafka, timeout: float = 60.0, /, **more: str) -> GroupOffsetsProbe:
    options = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": GROUP}
    topics = {} if "assign" in more or "subscribePattern" in more else {"subscribe": "t"}
    return GroupOffsetsProbe(options | topics | more, timeout, now=lambda: 7.0)


def lags(sample: Sample) -> dict[str, tuple[int, int, int]]:
    return {str(each.tp): (each.position, each.end, each.lag) for each in sample.partitions()}


def test_lag_is_the_end_of_the_log_less_the_committed_offset(fake: FakeKafka) -> None:
    with closing(look(fake)) as seen:
        sample = seen.sample()
        assert (sample.at, lags(sample)) == (7.0, {"t-0": (4, 10, 6), "t-1": (10, 10, 0)})
        fake.produce("t", ["more"] * 5, 1)
        fake.commit(GROUP, {("t", 0): 10})
        assert lags(seen.sample()) == {"t-0": (10, 10, 0), "t-1": (10, 15, 5)}


def test_a_look_changes_nothing_and_joins_nothing(fake: FakeKafka) -> None:
    before = dict(fake.group(GROUP).offsets)
    with closing(look(fake)) as seen:
        seen.sample()
        seen.describe()
    assert {api for api, _, _ in fake.requests} <= LOOKS
    assert fake.group(GROUP).offsets == before
    assert not fake.group(GROUP).members


def test_a_look_costs_two_requests_and_one_more_for_each_further_leader(fake: FakeKafka) -> None:
    with closing(look(fake)) as seen:
        seen.sample()
        fake.requests.clear()
        seen.sample()
    assert sorted(api for api, _, _ in fake.requests) == ["ListOffsets", "ListOffsets", "OffsetFetch"]


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"subscribePattern": ".*"}, {"t-0", "t-1", "u-0"}),
        ({"subscribePattern": "^u"}, {"u-0"}),
        ({"assign": '{"t": [1, 2]}'}, {"t-1"}),
    ],
)
def test_what_the_options_ask_for_is_looked_at(fake: FakeKafka, given: dict[str, str], seen: set[str]) -> None:
    with closing(look(fake, **given)) as one:
        assert set(lags(one.sample())) == seen


def test_under_read_committed_a_log_ends_at_its_last_stable_offset(fake: FakeKafka) -> None:
    fake.logs["t"][0].stable = 8
    with closing(look(fake, **{"kafka.isolation.level": "read_committed"})) as seen:
        assert lags(seen.sample())["t-0"] == (4, 8, 4)


def test_a_topic_that_was_deleted_is_left_out(fake: FakeKafka) -> None:
    fake.delete_topic("u")
    with closing(look(fake, subscribePattern=".*")) as seen:
        assert set(lags(seen.sample())) == {"t-0", "t-1"}


def test_the_lag_of_a_partition_whose_leader_does_not_answer_is_unknown(fake: FakeKafka) -> None:
    with closing(look(fake, 2.0)) as seen:
        seen.sample()
        fake.brokers[2].hung = True
        sample = seen.sample()
    fake.brokers[2].hung = False
    told, silent = set(lags(sample)), {str(tp) for tp in sample.unknown()}
    assert (told | silent, len(told), len(silent)) == ({"t-0", "t-1"}, 1, 1)


def test_a_coordinator_that_has_moved_is_found(fake: FakeKafka) -> None:
    with closing(look(fake)) as seen:
        seen.sample()
        fake.coordinator = 2
        assert lags(seen.sample())["t-0"] == (4, 10, 6)


def test_brokers_that_are_away_are_an_error_in_time(fake: FakeKafka) -> None:
    with closing(look(fake, 1.0)) as seen:
        for each in fake.brokers.values():
            each.hung = True
        began = time.monotonic()
        with pytest.raises(GroupSourceError) as raised:
            seen.sample()
        assert raised.value.retriable
        assert time.monotonic() - began < 60
    for each in fake.brokers.values():
        each.hung = False
    with closing(look(fake)) as seen:
        assert lags(seen.sample())["t-0"] == (4, 10, 6)


def test_a_group_that_may_not_be_read_is_an_error_that_says_so(fake: FakeKafka) -> None:
    fake.next("OffsetFetch", Fault(error=30))
    with closing(look(fake)) as seen, pytest.raises(GroupError, match="READ on the group"):
        seen.sample()


def test_a_coordinator_that_keeps_refusing_is_an_error_at_the_deadline(fake: FakeKafka) -> None:
    fake.next("OffsetFetch", Fault(error=14), times=1000)
    with closing(look(fake, 0.5)) as seen, pytest.raises(BrokerUnavailable, match="coordinator"):
        seen.sample()


def test_members_and_what_they_own_are_described(fake: FakeKafka) -> None:
    with closing(look(fake)) as seen:
        assert seen.describe() == GroupDescription("Empty", "", ())
        fake.group(GROUP).members["m"] = FakeMember("m", "static-1", {}, 1.0)
        (member,) = seen.describe().members
        assert (member.client_id, member.host, member.instance_id) == ("client", "127.0.0.1", "static-1")
        assert member.partitions == frozenset()


def test_a_group_that_does_not_exist_is_dead(fake: FakeKafka) -> None:
    with closing(look(fake, **{"kafka.group.id": "nobody"})) as seen:
        assert seen.describe() == GroupDescription("Dead", "", ())
        assert seen.sample().partitions() == ()


def test_a_group_is_needed() -> None:
    with pytest.raises(OptionError, match=r"kafka\.group\.id"):
        GroupOffsetsProbe({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
