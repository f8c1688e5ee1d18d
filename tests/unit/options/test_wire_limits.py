"""Each number and each name that an option accepts fits into the requests it ends up in, at every version of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given as drawn
from hypothesis import settings as profile
from hypothesis import strategies as st

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, OptionError
from spark_group_source.fetch.messages import FetchPartition, build_request
from spark_group_source.group.classic.messages import MembershipRequests
from spark_group_source.group.commits import CommittedOffset, GroupOffsets, commit_metadata
from spark_group_source.group.consumer import messages
from spark_group_source.group.consumer.states import ConsumerMembership
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.offsets import MAX_OFFSET, TopicPartition
from spark_group_source.options import values
from spark_group_source.options.offset_specs import AtTimestamp, SpecificOffsets
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.options.table import OPTIONS
from spark_group_source.query import size_samples
from spark_group_source.query.size_samples import sample_sizes
from spark_group_source.wire import tcp, versions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.offset_lookup import _list_offsets_request
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka
from tests.unit.options.test_option_names import VALUES, others
from tests.unit.options.test_options import GOOD
from tests.unit.wire_options import after, wire_options

TP = TopicPartition("t", 0)
JSON_NUMBERS = '{{"t":{{"0":{}}}}}'
EXTREMES = [
    *(str(number + step) for number in (0, 2**15, 2**31, 2**32, 2**63) for step in (-1, 0, 1)),
    *(JSON_NUMBERS.format(number) for number in (2**31, MAX_OFFSET, 2**63, 2**64)),
    *(
        letter * length
        for letter in ("x", "é", "\U0001f600")
        for length in (249, 8192, 2**14, 2**15 - 1, 2**15, 40_000)
    ),
    "99999999999999999999d",
    "9223372036854775807d",
    "8191p",
    "name\udc80",
]


class Recorder:
    """A client of the coordinator that keeps the requests and answers none."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.broker_id = 1

    def call(self, request: Any, *_: object) -> RequestFailed:
        self.requests.append(request)
        return RequestFailed(ErrorAction.REDISCOVER, "nobody answers")

    def supports(self, *_: object) -> bool:
        return True

    def connect(self, *_: object) -> None:
        return None

    connect_to_known = connect


def requests_of(options: SourceOptions) -> Iterator[Any]:
    """A request of each kind that has a value of these options."""
    group, fetch, wire, recorder = options.group, options.fetch, options.wire, Recorder()
    start = options.starting_offsets
    at = start.offsets.get(TP, 0) if isinstance(start, SpecificOffsets) else 0
    offset = at if isinstance(at, int) else 0
    yield build_request(
        [FetchPartition(TP, "", offset, fetch.partition_max_bytes)],
        max_wait=fetch.max_wait,
        max_bytes=fetch.max_bytes,
        read_committed=fetch.read_committed,
        min_bytes=fetch.min_bytes,
        rack=wire.rack,
    )
    for time in (options.starting_timestamp, options.ending_timestamp, options.starting_offsets_by_timestamp):
        if isinstance(time, AtTimestamp):
            number = time.timestamps if isinstance(time.timestamps, int) else time.timestamps[TP]
            yield _list_offsets_request({TP: number}, fetch.read_committed)
    cluster = Mock(options=wire)
    member = MembershipRequests(cluster, group)
    member.client = member._liveness_client = recorder  # type: ignore[assignment]
    me = Membership(member_id=f"{wire.client_id}-{uuid.uuid4()}")  # as coordinators make it
    member.join(me, dict.fromkeys(group.assignors, b"x"), after(), Mock())
    member.heartbeat(me, after())
    member.leave(me.member_id, "the query ends", after())
    committed = GroupOffsets(cluster, group)
    committed._client = recorder  # type: ignore[assignment]
    fields = {"application": "\U0001f600" * 40_000, "client": wire.client_id, "member": me.member_id, "generation": 1}
    metadata = commit_metadata(fields)
    committed.commit(me, {TP: CommittedOffset(offset, metadata)}, after(), {})
    committed.committed([TP], after())
    yield from recorder.requests
    yield messages.build_request(ConsumerMembership(member_id="m", topics=frozenset({"t"})), group)
    built: list[Any] = []
    searching = Cluster(wire)

    def answer(request: Any, _: Deadline) -> Any:
        built.append(request)
        return Mock(coordinators=[Mock(error_code=0)])

    def ask_any(_: str, ask: Any, deadline: Deadline) -> Any:
        return ask(Mock(call=answer), deadline)

    searching._any_broker.call = ask_any  # type: ignore[method-assign, assignment]
    searching.find_coordinator(group.group_id, after())
    yield from built


def encode(request: Any, client_id: str) -> None:
    """Encodes a request in its own version, or in the lowest and the highest."""
    lowest, highest, _ = versions.KNOWN.get(request.API_KEY, (None, None, None))
    chosen = [lowest, highest] if request.API_VERSION is None else [request.API_VERSION]
    for version in chosen:
        request.API_VERSION = version
        request.with_header(correlation_id=1, client_id=client_id)
        request.encode(framed=True, header=True)


def test_every_accepted_extreme_of_every_option_fits_into_the_requests() -> None:
    accepted, longest = dict.fromkeys((option.name for option in VALUES), 0), 0
    for option in VALUES:
        for text in EXTREMES:
            try:
                options = parse_options(others(option) | {option.name: text})
            except OptionError as error:
                longest = max(longest, len(str(error)))
                continue
            accepted[option.name] += 1
            for request in requests_of(options):
                encode(request, options.wire.client_id)
    assert longest < 1200, "characters of an error"
    assert accepted["kafka.client.id"] > 5
    assert accepted["kafka.fetch.max.bytes"] > 2
    assert accepted["startingTimestamp"] > 5


@profile(max_examples=60, deadline=None)
@drawn(st.dictionaries(st.sampled_from([option.name for option in VALUES]), st.sampled_from(EXTREMES), max_size=6))
def test_accepted_extremes_together_fit_into_the_requests(given: dict[str, str]) -> None:
    try:
        options = parse_options(GOOD | given)
    except OptionError:
        return
    for request in requests_of(options):
        encode(request, options.wire.client_id)


@pytest.mark.parametrize(
    ("name", "maximum"), [("kafka.client.id", 32703), ("kafka.group.id", 32767), ("kafka.client.rack", 32767)]
)
def test_a_name_that_no_request_can_hold_is_an_error_with_the_maximum(name: str, maximum: int) -> None:
    assert parse_options(GOOD | {name: "é" * (maximum // 2)})
    with pytest.raises(OptionError, match=rf"at most {maximum} bytes.*no room for 40000") as raised:
        parse_options(GOOD | {name: "x" * 40_000})
    assert len(str(raised.value)) < 800
    with pytest.raises(OptionError, match="encoded as UTF-8"):
        parse_options(GOOD | {name: "a\udc80"})


def test_a_blank_rack_or_client_id_is_javas_default() -> None:
    parsed = parse_options(GOOD | {"kafka.client.rack": "", "kafka.client.id": " "})
    assert parsed == parse_options(GOOD)


def test_the_default_client_id_of_a_lag_client_fits_whatever_the_group_is_called() -> None:
    client = GroupLagClient(GOOD | {"kafka.group.id": "g" * values.MAX_TEXT_BYTES})
    assert len(client._cluster.options.client_id) == 150


LONGS: dict[Callable[[str], Any], float] = {
    values.positive_count: MAX_OFFSET,
    values.retry_count: MAX_OFFSET,
    values.long_milliseconds: values.FOREVER,
    values.long_wait: values.FOREVER,
    values.idle_time: values.FOREVER,
    values.duration: values.FOREVER,
    values.byte_string: MAX_OFFSET,
}


AS_IN_SPARK = """
kafka.connections.max.idle.ms kafka.metadata.max.age.ms kafka.reconnect.backoff.ms kafka.retry.backoff.ms
kafka.socket.connection.setup.timeout.ms kafkaConsumer.pollTimeoutMs maxOffsetsPerTrigger maxRecordsPerPartition
maxTriggerDelay minOffsetsPerTrigger minPartitions
"""
"""Options whose 64-bit numbers Spark's own source accepts."""


def test_the_largest_long_of_java_is_accepted_where_sparks_source_accepts_it() -> None:
    taking = [option for option in OPTIONS if option.parse in LONGS]
    assert set(AS_IN_SPARK.split()) <= {each.name for each in taking}
    for option in taking:
        for text in (str(MAX_OFFSET), f"+{MAX_OFFSET}", f"000{MAX_OFFSET}"):
            if text[0] != "+" or option.parse not in (values.duration, values.byte_string):
                assert option.parse(text) == LONGS[option.parse], option.name
    assert values.idle_time("-1") == values.FOREVER


@pytest.mark.parametrize(
    ("name", "largest"), [("maxOffsetsPerTrigger", MAX_OFFSET), ("kafka.fetch.max.bytes", 2**31 - 1)]
)
def test_the_error_for_a_number_that_is_too_large_names_the_maximum(name: str, largest: int) -> None:
    for text in (str(largest + 1), "9" * 30):
        with pytest.raises(OptionError, match=f"to {largest}"):
            parse_options(GOOD | {name: text})


def test_sizes_of_samples_stay_within_their_field_however_many_partitions_lack_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(size_samples, "MAX_SAMPLE_BYTES", 10_000)
    with FakeKafka() as fake:
        fake.create_topic("t", partitions=30)
        for number in range(30):
            fake.produce("t", ["x" * 1000] * 6, number)
        cluster = Cluster(wire_options(fake))
        deadline = Deadline.after(30)
        topics = cluster.topics({"t"}, deadline)
        offsets = {TopicPartition("t", number): 0 for number in range(30)}
        sizes, silent = sample_sizes(cluster, topics, offsets, 2**30, deadline)
        cluster.close()
    assert sizes.keys() == offsets.keys()
    assert not silent
    request = size_samples._request(topics, offsets, 2**20, 2**40)
    encode(request, "c")


@pytest.mark.parametrize("port", [-1, 0, 65536, 2**31 - 1])
def test_an_advertised_port_that_is_none_is_a_broker_that_cannot_be_reached(port: int) -> None:
    with pytest.raises(BrokerUnavailable, match=rf"{port} is not a port.*advertised\.listeners"):
        tcp.connect("127.0.0.1", port, WireOptions((("127.0.0.1", port),)), after())
