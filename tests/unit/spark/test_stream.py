"""The reader of a stream, as Spark and the thread of the completions call it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, GroupError, OptionError, TopicError
from spark_group_source.group.counters import Counters
from spark_group_source.offsets import BatchLimit, BatchOffset, OffsetRange, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.query import driver
from spark_group_source.spark import stream
from spark_group_source.spark.application import Application
from spark_group_source.spark.jvm_process import JvmProcess
from spark_group_source.spark.notifications.client import ServerAddress
from spark_group_source.spark.notifications.messages import ALL, Rejection, digest, source_key
from spark_group_source.spark.notifications.server import NotificationServer
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader
from spark_group_source.spark.tasks import TaskPartition
from spark_group_source.wire.metadata import Metadata, Topic
from tests.waiting import eventually

OPTIONS = {"kafka.bootstrap.servers": "b:9092", "kafka.group.id": "g", "subscribe": "t"}
TIMEOUT_S = 30.0
Json = dict[str, Any]


def batch(start: int, end: int) -> BatchOffset:
    return BatchOffset.from_ranges([OffsetRange("t", 0, start, end, "id")], "g")


def logged(offset: BatchOffset) -> Json:
    """The offset as Spark passes it, which keeps only its text."""
    return dict(json.loads(json.dumps(offset.as_json())))


class FakeDriver:
    """A driver that plans the batches of ``planned``, and has seen end offsets and counted a rebalance."""

    planned: list[BatchOffset]

    def __init__(self, *args: object, **named: object) -> None:
        self.named = named
        self.counters = Counters(joins=2, rebalances=1)
        self.started: list[tuple[BatchOffset, bool]] = []
        self.in_flight: BatchOffset | None = None
        self.completed: list[BatchOffset] = []
        self.error: Exception | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        self.ended: list[str] = []

    def pin_starts(self) -> None: ...

    def await_assignment(self) -> None: ...

    def leaders_of(self, partitions: Iterable[TopicPartition]) -> Metadata:
        return Metadata(topics={tp.topic: Topic(tp.topic, "", {tp.partition: 1}) for tp in partitions})

    def start(self, logged: BatchOffset, *, replayed: bool) -> None:
        self.started.append((logged, replayed))
        self.in_flight = logged if replayed else None

    def plan_batch(self, start: BatchOffset, max_offsets: int | None, max_bytes: int | None) -> BatchOffset:
        self.complete(start)
        self.meanwhile()
        if self.planned:
            self.in_flight = self.planned.pop(0)
        return self.in_flight or start

    @property
    def batch_in_flight(self) -> bool:
        return self.in_flight is not None

    def complete(self, end: BatchOffset) -> None:
        if self.error is not None:
            raise self.error
        if end == self.in_flight:
            self.completed.append(end)
            self.in_flight = None

    def leave(self) -> None:
        self.ended.append("left")

    def close(self, deadline: Deadline, completed: BatchOffset | None = None) -> None:
        if completed is not None:
            self.complete(completed)
        self.ended.append("closed")

    def end_offsets(self) -> Mapping[TopicPartition, int]:
        return {TopicPartition("t", 0): 5}


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> GroupStreamReader:
    """A reader without Kafka, which leaves the signals and the log of this process alone."""
    monkeypatch.setattr(driver, "Driver", FakeDriver)
    monkeypatch.setattr(FakeDriver, "planned", [batch(0, 3), batch(3, 5)], raising=False)
    for name in ("leave_when_told", "log_to_stderr", "ignore_further_signals"):
        monkeypatch.setattr(stream, name, lambda *_: None)
    return GroupStreamReader(parse_options(OPTIONS), source_schema(False), Application("app"))


def fake(reader: GroupStreamReader) -> FakeDriver:
    return cast(FakeDriver, reader._driver)


def report(reader: GroupStreamReader, end: BatchOffset) -> bool:
    """Reports a batch as completed, on a thread of its own; returns whether the reader has returned."""
    thread = threading.Thread(target=reader._batch_completed, args=(digest(logged(end)),), daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    return not thread.is_alive()


def test_the_reader_reports_end_offsets_and_counters_once_its_driver_exists(reader: GroupStreamReader) -> None:
    assert reader.reportLatestOffset() is None
    assert reader.initialOffset() == BatchOffset().as_json()
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert reported["t"] == {"0": 5}
    assert [reported["#counters"][each] for each in ("joins", "rebalances", "lost")] == [2, 1, 0]


TARGET = OPTIONS | {"targetBatchDuration": "30s"}


@pytest.mark.skipif(vars(stream)["ReadLimit"] is None, reason="PySpark 4.1 has no read limits")
@pytest.mark.parametrize(
    ("options", "limits"),
    [
        (OPTIONS, ((None, None), (None, None))),
        (OPTIONS | {"maxOffsetsPerTrigger": "5"}, ((5, None), (None, None))),
        (TARGET, ((None, None), "all")),
        (TARGET | {"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "1k"}, ((5, 1024), "all")),
        (TARGET | {"maxBytesPerTrigger": "1k"}, ((None, 1024), "all")),
    ],
)
def test_the_trigger_once_has_no_limits_and_other_triggers_those_of_the_options(
    reader: GroupStreamReader, options: dict[str, str], limits: tuple[object, object]
) -> None:
    reader = GroupStreamReader(parse_options(options), source_schema(False), Application("app"))
    start = reader.initialOffset()
    driver = Mock()
    reader._driver, reader._life = driver, stream.Life.JOINED
    driver.plan_batch.side_effect = driver.plan_all_available.side_effect = lambda begin, *given: begin
    for limit in (reader.getDefaultReadLimit(), vars(stream)["ReadAllAvailable"]()):
        reader.latestOffset(start, limit)
    calls = [call.args[1:] if call[0] == "plan_batch" else "all" for call in driver.mock_calls]
    assert tuple(calls) == limits


def test_the_progress_says_what_limits_batches_if_an_option_does(reader: GroupStreamReader) -> None:
    reader.initialOffset()
    assert "#limit" not in (reader.reportLatestOffset() or {})
    reader = GroupStreamReader(parse_options(TARGET), source_schema(False), Application("app"))
    reader.initialOffset()
    limit = BatchLimit("targetBatchDuration", 1000, "no batch has been measured yet")
    cast(Any, reader._driver).batch_limit = lambda: limit
    assert (reader.reportLatestOffset() or {})["#limit"]["offsets"] == 1000


def test_a_reported_batch_is_completed_and_other_batches_are_not(reader: GroupStreamReader) -> None:
    first = reader.latestOffset(reader.initialOffset())
    assert first == batch(0, 3).as_json()
    for other in (batch(0, 2), replace(batch(0, 3), group="other"), replace(batch(0, 3), repeated=True)):
        report(reader, other)
    assert fake(reader).completed == []
    report(reader, batch(0, 3))
    assert fake(reader).completed == [batch(0, 3)]
    assert reader.latestOffset(logged(batch(0, 3))) == batch(3, 5).as_json()
    assert fake(reader).completed == [batch(0, 3)]


def test_a_report_that_comes_as_the_next_batch_is_planned_does_not_complete_that_one(
    reader: GroupStreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.latestOffset(reader.initialOffset())

    class TakenBetween:
        """The lock, which the next plan takes and releases just before the report does."""

        def __init__(self, lock: Any) -> None:
            self.lock = lock

        def acquire(self, *, blocking: bool) -> bool:
            monkeypatch.setattr(reader, "_lock", self.lock)
            reader.latestOffset(logged(batch(0, 3)))
            return bool(self.lock.acquire(blocking=blocking))

    monkeypatch.setattr(reader, "_lock", TakenBetween(reader._lock))
    reader._batch_completed(digest(logged(batch(0, 3))))
    assert fake(reader).completed == [batch(0, 3)]
    assert fake(reader).in_flight == batch(3, 5)


def test_no_completion_waits_while_a_batch_is_planned(reader: GroupStreamReader) -> None:
    """The thread of the completions also hears of all other queries: a reader that does not read is cut off."""
    first = reader.latestOffset(reader.initialOffset())
    reader.partitions(reader.initialOffset(), first)
    returned: list[bool] = []
    fake(reader).meanwhile = lambda: returned.extend(report(reader, end) for end in (batch(0, 3), batch(7, 9)))
    reader.latestOffset(logged(batch(0, 3)))
    assert returned == [True, True]
    assert fake(reader).completed == [batch(0, 3)]


def test_the_wrapper_of_available_now_is_an_error(reader: GroupStreamReader, monkeypatch: pytest.MonkeyPatch) -> None:
    reader._application = Application("app", wraps_available_now=True)
    monkeypatch.setattr(stream, "ReadLimit", None)  # as with PySpark 4.1
    with pytest.raises(OptionError, match=r"triggerAvailableNowWrapper\.enabled' is true.*Set it to false"):
        reader.latestOffset()


def test_a_logged_first_batch_is_repeated_although_a_topic_is_gone(
    reader: GroupStreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pin_starts(_: FakeDriver) -> None:
        raise TopicError("Topic 'none' cannot be read.", error_code=3)

    monkeypatch.setattr(FakeDriver, "pin_starts", pin_starts)
    start = reader.initialOffset()
    with pytest.raises(TopicError, match="Topic 'none'"):
        reader.latestOffset(start)
    assert len(reader.partitions(start, logged(batch(0, 3)))) == 1
    monkeypatch.setattr(FakeDriver, "planned", [batch(3, 5)])
    report(reader, batch(0, 3))
    assert (fake(reader).started, fake(reader).completed) == ([(batch(0, 3), True)], [batch(0, 3)])
    assert reader.latestOffset(logged(batch(0, 3))) == batch(3, 5).as_json()


@pytest.mark.parametrize("error", [GroupError("The group refuses this member.", error_code=30), KeyError("a bug")])
def test_an_error_of_a_completion_ends_the_query_at_its_next_batch(reader: GroupStreamReader, error: Exception) -> None:
    reader.latestOffset(reader.initialOffset())
    fake(reader).error = error
    report(reader, batch(0, 3))
    fake(reader).error = None
    with pytest.raises(type(error), match="refuses this member|a bug"):
        reader.latestOffset(logged(batch(0, 3)))
    assert fake(reader).planned == [batch(3, 5)]


def test_a_completion_without_brokers_is_repeated_at_the_next_batch(
    reader: GroupStreamReader, caplog: pytest.LogCaptureFixture
) -> None:
    reader.latestOffset(reader.initialOffset())
    fake(reader).error = BrokerUnavailable("No broker.")
    report(reader, batch(0, 3))
    assert "next try when Spark plans the next batch" in caplog.text
    fake(reader).error = None
    assert reader.latestOffset(logged(batch(0, 3))) == batch(3, 5).as_json()
    assert fake(reader).completed == [batch(0, 3)]


def test_a_query_whose_replayed_batch_is_completed_without_brokers_joins_at_the_next_one(
    reader: GroupStreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = FakeDriver.start

    def without_brokers(*_: object, **__: object) -> None:
        raise BrokerUnavailable("No broker.")

    reader.partitions(BatchOffset().as_json(), logged(batch(0, 3)))
    with monkeypatch.context() as patch:
        patch.setattr(FakeDriver, "start", without_brokers)
        report(reader, batch(0, 3))
    assert FakeDriver.start is start
    monkeypatch.setattr(FakeDriver, "planned", [batch(3, 5)])
    assert reader.latestOffset(logged(batch(0, 3))) == batch(3, 5).as_json()
    assert (fake(reader).started, fake(reader).completed) == ([(batch(0, 3), True)], [batch(0, 3)])


def test_the_end_commits_a_batch_that_was_reported_while_another_call_was_under_way(reader: GroupStreamReader) -> None:
    first = reader.latestOffset(reader.initialOffset())
    reader.partitions(reader.initialOffset(), first)
    with reader._lock:  # as latestOffset, which SIGTERM ends before it completes the batch
        assert report(reader, batch(0, 3))
    assert fake(reader).completed == []
    reader.stop()
    assert fake(reader).completed == [batch(0, 3)]
    assert fake(reader).ended == ["closed"]


def test_tasks_have_the_leaders_that_the_driver_knows(
    reader: GroupStreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replayed batch is read before the driver asks for any."""
    (replayed,) = reader.partitions(BatchOffset().as_json(), logged(batch(0, 3)))
    monkeypatch.setattr(FakeDriver, "planned", [batch(3, 5)])
    (planned,) = reader.partitions(logged(batch(0, 3)), reader.latestOffset(logged(batch(0, 3))))
    assert isinstance(replayed, TaskPartition)
    assert isinstance(planned, TaskPartition)
    assert replayed.task.leaders is None
    assert planned.task.leaders == Metadata(topics={"t": Topic("t", "", {0: 1})})


def test_a_batch_that_is_repeated_is_logged_before_the_query_joins(
    reader: GroupStreamReader, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    reader.partitions(BatchOffset().as_json(), logged(batch(0, 3)))
    (line,) = [each for each in caplog.messages if "repeats the last batch" in each]
    assert "t-0[0, 3). The query joins the group when" in line
    assert reader._driver is None
    monkeypatch.setattr(FakeDriver, "planned", [batch(3, 5)])
    reader.partitions(logged(batch(0, 3)), reader.latestOffset(logged(batch(0, 3))))
    assert caplog.text.count("repeats the last batch") == 1


def test_the_end_completes_no_batch_that_was_not_reported(reader: GroupStreamReader) -> None:
    first = reader.latestOffset(reader.initialOffset())
    reader.partitions(reader.initialOffset(), first)
    report(reader, batch(0, 2))
    reader.stop()
    assert fake(reader).completed == []


def test_the_end_during_a_completion_only_leaves(reader: GroupStreamReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LOCK_TIMEOUT", 0.1)
    reader.latestOffset(reader.initialOffset())
    locked, release = threading.Event(), threading.Event()

    def hold() -> None:
        with reader._lock:
            locked.set()
            release.wait(TIMEOUT_S)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert locked.wait(TIMEOUT_S)
    reader.stop()
    assert fake(reader).ended == ["left"]
    release.set()
    holder.join(TIMEOUT_S)
    reader.stop()
    assert fake(reader).ended == ["left", "closed"]


def test_a_new_query_joins_in_the_call_that_plans_its_first_batch(reader: GroupStreamReader) -> None:
    reader.initialOffset()
    assert fake(reader).started == []
    assert reader.latestOffset() == batch(0, 3).as_json()
    assert fake(reader).started == [(BatchOffset(), False)]


def test_pyspark_4_1_asks_without_the_start_which_is_the_end_of_the_last_batch(reader: GroupStreamReader) -> None:
    first = reader.latestOffset()
    assert (first, fake(reader).started) == (batch(0, 3).as_json(), [(BatchOffset(), False)])
    reader.partitions(BatchOffset().as_json(), logged(batch(0, 3)))
    assert reader.latestOffset() == batch(3, 5).as_json()
    assert reader.latestOffset() == batch(3, 5).as_json(), "nothing new"
    assert fake(reader).completed == [batch(0, 3), batch(3, 5)]


def test_an_idle_query_gets_the_text_of_its_checkpoint_back(reader: GroupStreamReader) -> None:
    FakeDriver.planned.clear()
    old = {"version": 1, "topics": {"t": {"partitions": {"0": [0, 3]}, "id": "id"}}}
    reader.partitions(old, old)  # PySpark 4.1 at a restart
    assert json.dumps(reader.latestOffset()) == json.dumps(reader.latestOffset(old)) == json.dumps(old)
    assert fake(reader).started == [(BatchOffset.from_json(old), False)]


@pytest.mark.parametrize("version", [1, 2])
def test_a_query_joins_when_its_replayed_batch_is_completed(reader: GroupStreamReader, version: int) -> None:
    text = {**logged(batch(0, 3)), "version": version}
    reader.partitions(BatchOffset().as_json(), text)
    reader._batch_completed(digest(logged(batch(3, 5))))
    assert reader._driver is None
    reader._batch_completed(digest(text))
    assert fake(reader).started == [(batch(0, 3), True)]
    assert fake(reader).completed == [batch(0, 3)]


def test_the_log_says_why_completed_batches_are_not_reported(
    reader: GroupStreamReader, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    reader._notification_server = ServerAddress(missing="no Unix socket in /tmp: read-only file system")
    reader.initialOffset()
    assert "each batch when Spark plans the next one: no Unix socket in /tmp: read-only file system" in caplog.text


def test_the_driver_looks_for_other_members_only_if_the_user_s_process_knows_no_other_queries(
    reader: GroupStreamReader,
) -> None:
    reader.initialOffset()
    assert fake(reader).named["looks_for_other_members"]
    with closing(NotificationServer(lambda: None)) as server:
        other = GroupStreamReader(reader._options, source_schema(False), Application("app"), ServerAddress(server.path))
        other.initialOffset()
        assert not fake(other).named["looks_for_other_members"]
        other.stop()


def test_a_query_that_its_user_s_process_rejects_ends_before_it_has_a_driver(
    reader: GroupStreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejection = Rejection("2 sources share a group.", "Give each its own.")
    with closing(NotificationServer(lambda: None, {source_key(reader._options): rejection}.get)) as server:
        reader._notification_server = ServerAddress(server.path)
        for call in (reader.initialOffset, lambda: reader.partitions(batch(0, 3).as_json(), batch(3, 5).as_json())):
            with pytest.raises(OptionError, match="2 sources share a group. Give each its own."):
                call()
        assert reader._driver is None
        reader.stop()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a reader does when it is told to leave."""
    done: list[str] = []
    monkeypatch.setattr(stream, "leave_now", lambda: done.append("leaves"))
    return done


def test_a_reader_leaves_when_its_own_query_was_stopped_and_not_when_another_was(
    reader: GroupStreamReader, told: list[str]
) -> None:
    reader.latestOffset(reader.initialOffset())
    reader._query_stopped(digest(logged(batch(3, 5))))
    assert told == []
    reader._query_stopped(digest(logged(batch(0, 3))))
    reader._query_stopped(ALL)
    assert told == ["leaves", "leaves"]


def test_a_reader_says_that_it_has_left_after_it_has_and_then_waits_for_a_jvm_that_ends(
    reader: GroupStreamReader, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeDriver, "close", lambda *_: told.append("has left"))
    monkeypatch.setattr(JvmProcess, "await_end", lambda _: told.append("waits for the JVM"))

    def attend(attended: bool) -> None:
        if not attended:
            told.append("disconnects")

    with closing(NotificationServer(lambda: None, attend=attend)) as server:
        reader._notification_server = ServerAddress(server.path)
        reader.initialOffset()
        eventually(lambda: server.attended)
        server.end_application()
        eventually(lambda: told == ["leaves"])
        reader.stop()
        eventually(lambda: not server.attended)
    assert set(told) == {"leaves", "has left", "waits for the JVM", "disconnects"}
    assert told.index("has left") < told.index("disconnects")


def test_a_reader_of_a_jvm_that_lives_on_does_not_wait_for_it(
    reader: GroupStreamReader, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JvmProcess, "await_end", lambda _: told.append("waits for the JVM"))
    reader.initialOffset()
    reader.stop()
    assert told == []
