"""A member that the group has given up stops reading before others read its partitions. Real Kafka."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration import callbacks
from tests.integration.commit_log import backward
from tests.integration.cut_link import CutKafka, Link
from tests.integration.query_process import Place, PlainQuery, eventually
from tests.integration.standing import Producing, caught_up, partitions_per_member, places_in

PARTITIONS = 4
SESSION_S, HEARTBEAT_S = 4.0, 1.0
SLACK_S = 2.0
"""Between the decision to plan a batch and the file in which it is logged, on a machine with other work to do."""
GIVES_UP_S = SESSION_S + HEARTBEAT_S + SLACK_S
"""After the last success of a member: nothing it plans later may be read."""
TIMES = {
    "kafka.session.timeout.ms": f"{SESSION_S * 1000:.0f}",
    "kafka.heartbeat.interval.ms": f"{HEARTBEAT_S * 1000:.0f}",
}
CUT_OFF, OTHER = "cut-off", "other"
SLOW = pytest.mark.slow

Plain = Callable[..., PlainQuery]
Cut = Callable[[Link], None]


@pytest.fixture(scope="module")
def kafka() -> Iterator[CutKafka]:
    running = CutKafka()
    with running:
        yield running


@pytest.fixture
def topic(unique: Callable[[str], str]) -> str:
    return unique("topic")


@pytest.fixture
def link(kafka: CutKafka, topic: str, group: str) -> Link:
    """The way to the group's coordinator, which leads none of the topic's partitions."""
    return kafka.place(topic, PARTITIONS, group)


class Watched:
    """A query: when each of its batches was planned, and what it read."""

    def __init__(self, query: PlainQuery) -> None:
        self.query = query
        self._batches: dict[int, tuple[float, list[Place]]] = {}

    def rows(self, since: float = 0.0, until: float = float("inf")) -> list[Place]:
        """Rows of the batches that were logged in this time."""
        for batch in self.query.batches():
            if batch not in self._batches:
                self._batches[batch] = self.query.planned_at(batch), self.query.attempts(batch)[0]
        return [row for _, (at, rows) in sorted(self._batches.items()) if since < at <= until for row in rows]

    def partitions(self) -> set[int]:
        return {partition for partition, _ in self.rows()}


@pytest.fixture
def watched(kafka: CutKafka, topic: str, link: Link, plain: Plain) -> Callable[..., Watched]:
    """The query that is to be given up, behind the links; it is reading when this returns."""

    def start(**more: str) -> Watched:
        own = {"kafka.bootstrap.servers": kafka.linked_servers, "kafka.client.id": CUT_OFF, **TIMES, **more}
        made = Watched(plain(topic, "watched", **own))
        made.query.until(made.rows, what="its first rows")
        return made

    return start


@pytest.fixture
def start_other(topic: str, plain: Plain) -> Callable[[], Watched]:
    """Starts another query, each with its own checkpoint."""
    names = (f"other-{number}" for number in itertools.count())
    return lambda: Watched(plain(topic, next(names), **TIMES, **{"kafka.client.id": OTHER}))


def owned_by(kafka: CutKafka, group: str, client: str) -> int:
    """How many partitions the members with this client id own, by Kafka's own description."""
    return sum(each.partitions for each in kafka.members(group) if each.client_id == client)


def assert_stopped(watched: Watched, since: float, until: float) -> None:
    """No batch with rows was planned between these times."""
    late = watched.rows(since, until)
    assert not late, f"{len(late)} rows were planned too late"


def assert_read(watched: Watched, others: list[Place], since: float, everything: set[Place]) -> None:
    """All was read, and nothing twice but what the query planned before it had to give up."""
    early, late = watched.rows(until=since), watched.rows(since=since)
    again = [place for place, count in Counter(late + others).items() if count > 1]
    repeated = len(early + late + others) - len({*early, *late, *others})
    print(f"{len(everything)} rows; {repeated} were read again, {len(again)} of these although it had to give up")
    assert not everything - {*early, *late, *others}, "a row was not read"
    assert len(set(early)) == len(early)
    assert not again, f"{len(again)} rows were read twice: {sorted(again)[:10]}"


def halves(kafka: CutKafka, group: str) -> bool:
    return partitions_per_member(kafka, group) == [PARTITIONS // 2] * 2


@pytest.mark.parametrize(
    ("cut", "seconds"),
    [
        pytest.param(Link.swallow, 20.0, id="silent"),
        pytest.param(Link.refuse, 20.0, id="refused", marks=SLOW),
        pytest.param(Link.swallow, 60.0, id="silent for a minute", marks=SLOW),
    ],
)
def test_a_query_without_its_coordinator_stops_when_its_session_ends_and_rejoins(
    kafka: CutKafka,
    topic: str,
    group: str,
    link: Link,
    watched: Callable[..., Watched],
    start_other: Callable[[], Watched],
    cut: Cut,
    seconds: float,
) -> None:
    with Producing(kafka, topic, PARTITIONS):
        cut_off = watched()
        other = start_other()
        eventually(lambda: halves(kafka, group) and other.rows(), what="an even split")
        cut(link)
        cut_at = time.time()
        had = set(range(PARTITIONS)) - other.partitions()
        took = eventually(lambda: had <= other.partitions(), what="the take-over")
        print(f"the other query reads the partitions of the one cut off {took:.1f} s after the cut")
        time.sleep(max(0.0, cut_at + seconds - time.time()))
        link.heal()
        healed_at = time.time()
        eventually(lambda: halves(kafka, group) and owned_by(kafka, group, CUT_OFF), what="the member coming back")
        cut_off.query.until(lambda: len(cut_off.rows(since=healed_at)) > 50, what="reading on")
    eventually(lambda: caught_up(kafka, topic, group), what="reading all")
    cut_off.query.end()
    other.query.end()
    assert backward(kafka, group) == []
    gives_up_at = cut_at + GIVES_UP_S
    assert_read(cut_off, other.rows(), gives_up_at, places_in(kafka, topic))
    assert_stopped(cut_off, gives_up_at, healed_at)


@SLOW
def test_a_single_query_without_its_coordinator_stops_and_resumes_at_its_position(
    kafka: CutKafka, topic: str, group: str, link: Link, watched: Callable[..., Watched]
) -> None:
    with Producing(kafka, topic, PARTITIONS):
        alone = watched()
        link.swallow()
        cut_at = time.time()
        time.sleep(GIVES_UP_S + SESSION_S)
        link.heal()
        healed_at = time.time()
        eventually(lambda: owned_by(kafka, group, CUT_OFF) == PARTITIONS, what="the member coming back")
        alone.query.until(lambda: len(alone.rows(since=healed_at)) > 100, what="reading on")
    eventually(lambda: caught_up(kafka, topic, group), what="reading all")
    alone.query.end()
    assert backward(kafka, group) == []
    assert sorted(alone.rows()) == sorted(places_in(kafka, topic)), "every row once"
    assert_stopped(alone, cut_at + GIVES_UP_S, healed_at)


@SLOW
def test_a_query_whose_callback_blocks_its_member_stops_when_its_session_ends_and_rejoins(
    kafka: CutKafka,
    topic: str,
    group: str,
    watched: Callable[..., Watched],
    start_other: Callable[[], Watched],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, seconds = tmp_path / "begun", 60.0
    monkeypatch.setenv(callbacks.BEGUN, str(begun))
    monkeypatch.setenv(callbacks.SECONDS, str(seconds))
    function = f"{callbacks.__name__}:{callbacks.stand_still_the_second_time.__name__}"
    with Producing(kafka, topic, PARTITIONS):
        blocked = watched(startingOffsetsCallback=function)
        first = start_other()
        eventually(lambda: halves(kafka, group) and first.rows(), what="an even split")
    # Brokers take a commit for a heartbeat: the session ends only while the query has nothing to commit.
    eventually(lambda: caught_up(kafka, topic, group), what="reading all")
    first.query.end()
    eventually(begun.exists, what="the second call")
    blocked_at = begun.stat().st_mtime
    other = start_other()
    took = eventually(lambda: owned_by(kafka, group, OTHER) == PARTITIONS, what="the take-over")
    print(f"another query owns all partitions, {took:.1f} s after it began to start")
    with Producing(kafka, topic, PARTITIONS):
        eventually(lambda: len(other.partitions()) == PARTITIONS, what="reading all partitions")
        assert time.time() < blocked_at + seconds, "the callback did not block for long enough to show anything"
        eventually(lambda: halves(kafka, group) and owned_by(kafka, group, CUT_OFF), what="the member coming back")
        back_at = time.time()
        blocked.query.until(lambda: len(blocked.rows(since=back_at)) > 100, what="reading on")
    eventually(lambda: caught_up(kafka, topic, group), what="reading all")
    blocked.query.end()
    other.query.end()
    assert backward(kafka, group) == []
    gives_up_at = blocked_at + GIVES_UP_S
    assert_read(blocked, first.rows() + other.rows(), gives_up_at, places_in(kafka, topic))
    assert_stopped(blocked, gives_up_at, blocked_at + seconds)
