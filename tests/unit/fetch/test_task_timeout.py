"""A task that waits for brokers says so, and does not wait for long where no broker was ever reached."""

from __future__ import annotations

import logging
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.sasl_sign_in import SaslSignIn
from spark_group_source.errors import AuthenticationFailed, DeadlineExceeded, GroupSourceError
from spark_group_source.fetch import cluster_pool, task_timeout
from spark_group_source.fetch.read_ahead import LOCAL_DIRECTORIES
from spark_group_source.fetch.reader import TaskReader, read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.fetch.task_timeout import UNREACHED_TIMEOUT, WARN_AFTER
from spark_group_source.text import Secret
from spark_group_source.wire.cluster import Cluster
from tests.fake import FakeKafka, Fault
from tests.unit.fetch.tasks import fill, of, offsets, task
from tests.unit.hand_clock import Hand
from tests.unit.wire_options import LONG, after

POLL_TIMEOUT = 120.0
NEVER_REACHED = "this executor has never reached a broker"


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    clock = Hand()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that the Python workers of one executor share."""
    monkeypatch.setenv(LOCAL_DIRECTORIES, str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def records(fake: FakeKafka) -> None:
    fill(fake)
    fill(fake, partition=1)


def in_new_worker(given: FetchTask) -> FetchTask:
    """The same task with settings that no broker has accepted from this process."""
    return replace(given, wire=replace(given.wire, client_id=str(uuid.uuid4())))


def without_brokers(given: FetchTask) -> FetchTask:
    """The same task with bootstrap servers at which nobody listens."""
    return replace(given, wire=replace(given.wire, bootstrap_servers=(("127.0.0.1", 1),)))


def a_task(fake: FakeKafka, **more: Any) -> FetchTask:
    given: dict[str, Any] = {
        "poll_timeout": POLL_TIMEOUT,
        "request_timeout": 30.0,
        "retry_backoff": 0.1,
        "retry_backoff_max": 1.0,
    }
    return in_new_worker(task(fake, (0, 0, 20), **{**given, **more}))


def failure(given: FetchTask, hand: Hand) -> tuple[float, GroupSourceError]:
    """After how many seconds a task fails, and with which error."""
    began = hand.now
    with closing(Cluster(given.wire, cluster_pool.AUTH_RETRY_TIMEOUT)) as cluster:
        with pytest.raises(GroupSourceError) as raised:
            list(TaskReader(given, cluster, hand).batches())
        return hand.now - began, raised.value


def stop(fake: FakeKafka) -> None:
    for broker in fake.brokers.values():
        broker.stop()


@pytest.fixture
def warnings(hand: Hand, caplog: pytest.LogCaptureFixture) -> Iterator[list[tuple[float, str]]]:
    """(Seconds of the clock, text) of each warning."""
    logged: list[tuple[float, str]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append((hand.now, record.getMessage()))

    handler = Handler(logging.WARNING)
    task_timeout.log.addHandler(handler)
    yield logged
    task_timeout.log.removeHandler(handler)


def test_a_task_whose_executor_never_reached_a_broker_warns_and_fails_early(
    fake: FakeKafka, hand: Hand, warnings: list[tuple[float, str]]
) -> None:
    seconds, error = failure(without_brokers(a_task(fake)), hand)
    assert seconds == pytest.approx(UNREACHED_TIMEOUT, abs=1)
    assert isinstance(error, DeadlineExceeded)
    assert NEVER_REACHED in str(error)
    assert "t-0[0, 20) at offset 0" in str(error)
    assert "127.0.0.1:1" in str(error)
    ((at, text),) = warnings
    assert at == pytest.approx(WARN_AFTER, abs=1)
    assert NEVER_REACHED in text
    assert f"host {socket.gethostname()}" in text
    assert re.search(r"the task fails in 1[56] s", text)
    assert "127.0.0.1:1" in text


def test_a_name_that_is_not_resolved_on_the_executor_is_in_the_warning_and_the_error(
    fake: FakeKafka, hand: Hand, warnings: list[tuple[float, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    given = a_task(fake)
    given = replace(given, wire=replace(given.wire, bootstrap_servers=(("only-on-driver", 9092),)))
    seconds, error = failure(given, hand)
    assert seconds == pytest.approx(UNREACHED_TIMEOUT, abs=1)
    for text in (warnings[0][1], str(error)):
        assert "only-on-driver" in text
        assert "cannot be resolved" in text


def test_a_task_waits_as_long_as_ever_if_its_worker_has_reached_a_broker_before(
    fake: FakeKafka, hand: Hand, warnings: list[tuple[float, str]]
) -> None:
    given = a_task(fake)
    assert offsets(read(given)) == of(0, 0, 20)
    stop(fake)
    seconds, error = failure(given, hand)
    assert seconds >= POLL_TIMEOUT
    assert NEVER_REACHED not in str(error)
    first, second = (at for at, _ in warnings)
    assert first == pytest.approx(WARN_AFTER, abs=1)
    assert 60 <= second - first < 90
    assert all(NEVER_REACHED not in text for _, text in warnings)


@pytest.mark.parametrize(("query_id", "waits"), [("a query", POLL_TIMEOUT), ("", UNREACHED_TIMEOUT)])
def test_a_new_worker_knows_that_an_earlier_one_of_its_executor_has_reached_a_broker(
    fake: FakeKafka, hand: Hand, executor: Path, query_id: str, waits: float
) -> None:
    """With ``spark.python.worker.reuse=false`` each task has a new worker."""
    given = a_task(fake, query_id=query_id)
    assert offsets(read(given)) == of(0, 0, 20)
    stop(fake)
    assert waits <= failure(in_new_worker(given), hand)[0] < waits + given.wire.request_timeout


def test_a_worker_that_reached_nothing_tells_later_ones_nothing(fake: FakeKafka, hand: Hand, executor: Path) -> None:
    given = without_brokers(a_task(fake, query_id="a query"))
    for _ in range(2):
        assert failure(in_new_worker(given), hand)[0] == pytest.approx(UNREACHED_TIMEOUT, abs=1)


def test_a_short_poll_timeout_ends_the_wait_first(fake: FakeKafka, hand: Hand) -> None:
    assert failure(without_brokers(a_task(fake, poll_timeout=10.0)), hand)[0] == pytest.approx(10.0, abs=1)


def test_a_broker_that_is_reached_in_time_ends_the_short_wait(fake: FakeKafka, hand: Hand) -> None:
    """A leader that is unreachable is no question of the executor alone, since another broker has answered."""
    fake.logs["t"][0].leader = 2
    fake.brokers[2].stop()
    seconds, error = failure(a_task(fake), hand)
    assert seconds == pytest.approx(POLL_TIMEOUT, abs=2)
    assert "advertised.listeners" in str(error)


def test_a_rejected_sign_in_has_its_own_time_and_error(fake: FakeKafka) -> None:
    sasl = SaslSignIn(Sasl("PLAIN", "alice", Secret("wrong here")))
    fake.next("SaslAuthenticate", Fault(error=58), 10_000)
    given = a_task(fake)
    given = replace(given, wire=replace(given.wire, sasl=sasl, reconnect_backoff=0.001))
    with closing(Cluster(given.wire, 3600.0)) as cluster:
        assert not cluster.reached
        with pytest.raises(GroupSourceError):
            cluster.metadata(["t"], after(0.5))
        assert cluster.reached


def test_only_partitions_whose_broker_does_not_answer_are_in_the_warning(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The executor reaches one broker and not the other, and reads on from the first."""
    monkeypatch.setattr(task_timeout, "WARN_AFTER", 0.5)
    monkeypatch.setattr(task_timeout, "CHECK_MARGIN", 0.01)
    fill(fake, batches=200, rows=20, size=500)
    fake.brokers[2].stop()
    given = task(fake, (0, 0, 4020), (1, 0, 20), fetch_max_bytes=20_000, poll_timeout=3.0)
    with closing(Cluster(given.wire)) as cluster:
        rows = TaskReader(given, cluster).batches()
        with suppress(DeadlineExceeded):  # on a busy machine, the end of the other partition comes first
            for _ in rows:
                time.sleep(0.02)
                if "t-1" in caplog.text:
                    break
    (warned,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "t-1[0, 20) at offset 0" in warned
    assert "t-0" not in warned


def test_a_silent_broker_is_in_a_warning_before_its_request_times_out(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_timeout, "WARN_AFTER", 0.2)
    monkeypatch.setattr(task_timeout, "CHECK_MARGIN", 0.01)
    fake.next("Fetch", Fault(silent=True), times=10)
    given = task(fake, (0, 0, 20), poll_timeout=1.0, request_timeout=LONG)
    with suppress(DeadlineExceeded):
        list(read(given))
    assert "no records for 0 s; the task fails in 1 s" in caplog.text


def test_the_time_that_spark_takes_for_rows_is_no_wait(
    fake: FakeKafka, hand: Hand, warnings: list[tuple[float, str]]
) -> None:
    fill(fake, batches=20, rows=20, size=500)
    given = task(fake, (0, 0, 420), fetch_max_bytes=20_000)
    with closing(Cluster(given.wire)) as cluster:
        read_offsets = []
        for rows in TaskReader(given, cluster, hand).batches():
            read_offsets += offsets([rows])
            hand.now += 10 * WARN_AFTER
    assert read_offsets == of(0, 0, 420)
    assert warnings == []


def test_errors_of_the_network_and_the_sign_in_name_the_host_of_the_executor(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = f"The task ran on host {socket.gethostname()}."
    with pytest.raises(DeadlineExceeded) as raised:
        list(read(without_brokers(a_task(fake, poll_timeout=0.3))))
    assert host in raised.value.happened
    sasl = SaslSignIn(Sasl("PLAIN", "alice", Secret(f"{uuid.uuid4()}")))
    fake.next("SaslAuthenticate", Fault(error=58), 10_000)
    rejected = a_task(fake)
    rejected = replace(rejected, wire=replace(rejected.wire, sasl=sasl))
    monkeypatch.setattr(cluster_pool, "AUTH_RETRY_TIMEOUT", 0.0)
    with pytest.raises(AuthenticationFailed) as raised_by_broker:
        list(read(rejected))
    assert host in raised_by_broker.value.happened
