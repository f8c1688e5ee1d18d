"""One simulated run: a cluster, queries, an operator and faults, all out of one seed; then everything heals."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spark_group_source.offsets import TopicPartition
from tests.fake import FakeKafka
from tests.fake.log import FakeLog
from tests.simulation import network, spark, substitution
from tests.simulation.chance import Chance
from tests.simulation.scheduler import Scheduler
from tests.simulation.spark import Query
from tests.simulation.truth import Broken, Truth

PROTOCOLS = ("classic", "consumer")
GROUP = "g"
HEALED_WITHIN = 120.0
"""Seconds after the last fault within which everything is read and committed."""

FINISHED_FOR = 4
"""Seconds for which all stays finished, after every late message has arrived and everything has healed."""

STOP_WITHIN = 100.0
MAX_SKEW = 1.5
"""Seconds by which the clock of a query's host may be behind. Decisions are further apart: see the contract."""


@dataclass
class Result:
    """What became of a run: its failure, if any, its story, and the draws that made it."""

    seed: int
    protocol: str
    failure: BaseException | None
    story: list[str]
    kept: dict[str, Any]
    steps: int
    virtual_seconds: float


class Story(logging.Handler):
    """Collects what happens, and what the product logs if it is a handler of it."""

    def __init__(self, run: Scheduler) -> None:
        super().__init__()
        self.run = run
        self.lines: list[str] = []

    def told(self, text: str) -> None:
        self.lines.append(f"{self.run.now:8.3f} {text}")

    def emit(self, record: logging.LogRecord) -> None:
        self.told(f"    [{self.run.process.name}] {record.levelname} {record.getMessage()}")


class Scenario:
    """The actors of one run."""

    def __init__(self, run: Scheduler, chance: Chance, protocol: str, story: Story) -> None:
        self.run, self.chance, self.story = run, chance, story
        self.protocol = protocol
        brokers = 1 + chance.pick("brokers", 0, (1, 2), 0.6)
        self.heartbeat = chance.pick("heartbeat interval", 1.0, (0.5, 2.0), 0.5)
        self.session = chance.pick("session", 6.0, (10.0, 45.0), 0.6)
        self.kafka = FakeKafka(
            brokers=brokers,
            max_metadata=chance.pick("metadata", 4096, (60, 30, 0), 0.1),
            heartbeat_interval=self.heartbeat,
            session_timeout=self.session,
        )
        self.truth = Truth(run, self.kafka, story.told)
        self.net = network.Network(run, self.kafka.brokers, self.truth.fault)  # type: ignore[arg-type]
        self.net.handled = self.truth.handled
        self.net.arrived_late = lambda what: self.truth.outage(0.0, what)
        network.Connection.network = self.net
        spark.Life.of_process.clear()
        if request := chance.pick("the one request", "", network.REQUESTS, 0.4):
            number = round(chance.number("number of the request", 0, 0, 15))
            fault = chance.pick("its fault", network.LOST_ANSWER, network.FAULTS, 0.9)
            self.net.only = request, number, fault
        elif chance.flag("faults in rebalances", 0.3):
            self.net.in_rebalances = 0.2
            self.net.rebalancing = lambda: self.truth.rebalancing(GROUP)
        calm = self.net.only or self.net.in_rebalances
        self.trouble = 0.0 if calm else chance.pick("trouble", 0.0, (0.0, 0.01, 0.04, 0.12), 0.9)
        self.queries: list[Query] = []
        self.empty: TopicPartition | None = None
        self.without_records = ""
        self.weights: list[float] = []
        self.often = chance.pick("events", 0.3, (0.15, 0.6, 0.9), 0.7)
        self.rewound_at = -MAX_SKEW
        self.duration = chance.number("duration", 10.0, 5.0, 22.0)
        self.runs = chance.pick("AvailableNow runs", 0.25, (0.0, 0.7), 0.5)
        self.slowness = 1.0

    def conduct(self) -> None:
        """The whole run."""
        self._create()
        self.net.fault_probability = self.trouble
        self.run.after(1.0, self._look, awaited=False)
        while self.run.now < self.duration:
            self._event()
            substitution.sleep(self.slowness * self.chance.number("pause", 0.6, 0.05, 1.5))
        self._heal()
        self._until_finished()
        self._check_members()
        self._stop_all()

    def _look(self) -> None:
        """Checks once a second what must not last."""
        self.truth.check_promptness(self.queries)
        self.run.after(1.0, self._look, awaited=False)

    def _create(self) -> None:
        chance = self.chance
        topics = chance.pick("topics", ["t"], (["t", "u"],), 0.25)
        for topic in topics:
            self.kafka.create_topic(topic, chance.pick("partitions", 2, (1, 3, 4), 0.7))
            if chance.flag("an empty partition", 0.2):
                self.empty = TopicPartition(topic, len(self.kafka.logs[topic]) - 1)
            self._produce(topic)
        if "u" in topics and chance.flag("an empty topic", 0.4):
            self.without_records = "u"
            for log in self.kafka.logs["u"].values():
                log.end = 0
        count = chance.pick("queries", 1, (2, 2, 3), 0.85)
        manual = chance.flag("assign", 0.1)
        rebalance = chance.pick("rebalance timeout", 20.0, (12.0, 40.0, 150.0, 150.0), 0.7)
        start = chance.pick("startingOffsets", "earliest", ("latest",), 0.4)
        assignor = chance.pick("assignor", "cooperative-sticky", ("range",), 0.4)
        isolation = chance.pick("isolation", "read_uncommitted", ("read_committed",), 0.4)
        for number in range(count):
            options = {
                "kafka.bootstrap.servers": self.kafka.bootstrap_servers,
                "kafka.group.id": GROUP,
                "startingOffsets": start,
                "failOnDataLoss": chance.pick("failOnDataLoss", "true", ("false",), 0.5),
                "kafka.isolation.level": isolation,
                "kafka.metadata.max.age.ms": "10000",
                "kafka.request.timeout.ms": "3000",
                "offsetCommit.timeoutMs": "3000",
            }
            if manual:
                mine = {topic: [each for each in self.kafka.logs[topic] if each % count == number] for topic in topics}
                options["assign"] = json.dumps({topic: numbers for topic, numbers in mine.items() if numbers})
                if not any(mine.values()):
                    continue
            else:
                options["subscribe"] = ",".join(topics)
                options["kafka.max.poll.interval.ms"] = str(round(rebalance * 1000))
                if self.protocol == "consumer":
                    options |= {"kafka.group.protocol": "consumer", "session": str(self.session)}
                else:
                    options["kafka.session.timeout.ms"] = str(round(self.session * 1000))
                    options["kafka.heartbeat.interval.ms"] = str(round(self.heartbeat * 1000))
                    options["kafka.partition.assignment.strategy"] = assignor
                if chance.flag("static", 0.2):
                    options["kafka.group.instance.id"] = f"i{number}"
            if limit := chance.pick("maxOffsetsPerTrigger", "", ("7", "20"), 0.4):
                options["maxOffsetsPerTrigger"] = limit
            query = Query(
                self.run,
                self.truth,
                f"Q{number + 1}",
                options,
                reports=chance.flag("reports", 0.7),
                spark_4_1=chance.flag("Spark 4.1", 0.15),
            )
            query.skew = chance.number("clock behind", 0.0, 0.0, MAX_SKEW, 0.3)
            query.trigger = chance.pick("trigger", 1.0, (0.5, 3.0, 20.0), 0.5)
            query.max_batch_seconds = chance.pick("batch", 0.5, (3.0, 15.0, 40.0), 0.4)
            self.queries.append(query)
        if any(query.max_batch_seconds > 10 for query in self.queries):
            self.slowness = 4.0  # so that events surround several batches
            self.duration *= self.slowness
            for query in self.queries:
                query.trigger = min(query.trigger * self.slowness, 20.0)
        for query in self.queries:
            if not chance.flag("starts later", 0.3):
                self._begin(query)

    # Events

    def _event(self) -> None:
        events: tuple[Callable[[], None], ...] = (
            self._start,
            self._start,
            self._crash,
            self._stop,
            self._lose_checkpoint,
            self._rewind,
            self._retention,
            self._elect,
            self._leaderless,
            self._partitions_added,
            self._pause,
            self._transaction,
        )
        broken = (self._broker_stops, self._broker_hangs, self._cut, self._coordinator_moves, self._stale_metadata)
        rare = (self._recreate, self._delete_group, self._unclean, self._topic_is_gone)
        self._produce(self.chance.pick("topic", "t", ("u",) if "u" in self.kafka.logs else (), 0.5))
        events += rare + broken
        self.weights = self.weights or self.chance.weights(len(events))
        if not self.trouble:
            self.weights[-len(broken) :] = [0.0] * len(broken)
        happens = self.chance.pick("event", None, events, self.often, self.weights)
        if happens is not None:
            happens()

    def _query(self, alive: bool) -> Query | None:
        found = [each for each in self.queries if each.alive is alive]
        return self.chance.pick("which query", found[0], found[1:], 0.5) if found else None

    def _partition(self) -> TopicPartition:
        found = [TopicPartition(topic, number) for topic, logs in sorted(self.kafka.logs.items()) for number in logs]
        return self.chance.pick("which partition", found[0], found[1:], 0.7)

    def _broker(self) -> Any:
        found = list(self.kafka.brokers.values())
        return self.chance.pick("which broker", found[0], found[1:], 0.7)

    def _produce(self, topic: str) -> None:
        for number, log in self.kafka.logs[topic].items():
            if self.empty != (topic, number) and topic != self.without_records:
                log.append_count(round(self.chance.number("records", 5, 0, 15, 0.5)))

    def _start(self) -> None:
        if query := self._query(alive=False):
            self._begin(query)

    def _begin(self, query: Query) -> None:
        query.start(available_now=not query.spark_4_1 and self.chance.flag("AvailableNow", self.runs))

    def _crash(self) -> None:
        if query := self._query(alive=True):
            self.story.told(f"{query.name} is killed")
            query.crash()

    def _stop(self) -> None:
        if query := self._query(alive=True):
            self.story.told(f"{query.name} is to stop")
            self._end(query)

    def _end(self, query: Query) -> None:
        life = query.life
        assert life is not None
        life.stop()
        if not life.ended.wait(STOP_WITHIN) and query.life is life:
            raise Broken(f"I7: {query.name} has not stopped in {STOP_WITHIN:.0f} s")

    def _lose_checkpoint(self) -> None:
        if query := self._query(alive=False):
            query.lose_checkpoint()

    def _rewind(self) -> None:
        """An operator stops all queries, moves the group, and starts them again in some order."""
        for query in self.queries:
            if query.alive:
                if self.chance.flag("killed for the rewind", 0.3):
                    query.crash()
                else:
                    self._end(query)
        substitution.sleep(0.5)
        self._expire()
        tp = self._partition()
        log = self.kafka.logs[tp.topic][tp.partition]
        offset = round(self.chance.number("rewind to", log.start, log.start, log.end))
        logged = [borders for query in self.queries for borders in query.borders(tp, str(self.kafka.ids[tp.topic]))]
        offset = self.chance.pick("rewind to a border", offset, [each for each in logged if log.start <= each], 0.5)
        if self.run.now - self.rewound_at < MAX_SKEW:
            substitution.sleep(MAX_SKEW)
        self.rewound_at = self.run.now
        self.story.told(f"an operator sets {tp} to {offset}")
        self.kafka.commit(GROUP, {tuple(tp): offset})  # type: ignore[dict-item]
        self.truth.moved(GROUP, *tp, offset)
        order = sorted(self.queries, key=lambda _: self.chance.number("order", 0.0, 0.0, 1.0))
        for query in order:
            query.start()
            substitution.sleep(self.chance.number("between starts", 0.1, 0.1, 4.0))

    def _expire(self) -> None:
        """The sessions of killed members end."""
        for member in list(self.kafka.group(GROUP).members):
            self.kafka.expire(GROUP, member)

    def _delete_group(self) -> None:
        if not any(each.alive for each in self.queries):
            self._expire()
            self.story.told("an operator deletes the group")
            self.kafka.delete_group(GROUP)
            self.truth.forgotten(GROUP)

    def _retention(self) -> None:
        tp = self._partition()
        log = self.kafka.logs[tp.topic][tp.partition]
        start = round(self.chance.number("retention to", 0, log.start, log.end))
        self.story.told(f"retention deletes the records of {tp} before {start}")
        self.kafka.truncate(*tp, max(start, log.start))
        self.truth.data_may_be_lost = True
        self.truth.truncated(*tp, start)

    def _elect(self) -> None:
        tp = self._partition()
        leader = self._broker().node
        self.story.told(f"broker {leader} is elected for {tp}")
        self.kafka.elect(*tp, leader=leader)

    def _leaderless(self) -> None:
        tp, seconds = self._partition(), self.chance.number("leaderless", 2.0, 0.3, 12.0)
        log = self.kafka.logs[tp.topic][tp.partition]
        if log.leader is not None:
            self.truth.outage(0.0, f"{tp} has no leader for {seconds:.1f} s")
            self.truth.leaderless[tp] = self.run.now + seconds
            self._without_leader(log, seconds)

    def _without_leader(self, log: FakeLog, seconds: float) -> None:
        leader, log.leader = log.leader, None
        self.run.after(seconds, lambda: log.elect(log.leader or leader, None))

    def _unclean(self) -> None:
        tp = self._partition()
        log = self.kafka.logs[tp.topic][tp.partition]
        end = round(self.chance.number("unclean end", log.end, log.start, log.end))
        self.story.told(f"an unclean election for {tp} keeps the records before {end}")
        self.kafka.elect(*tp, end=end)
        self.truth.data_may_be_lost = True
        self.truth.cut_short(*tp, end)

    def _recreate(self) -> None:
        topic = self._partition().topic
        count = len(self.kafka.logs[topic])
        self.story.told(f"topic {topic} is deleted and recreated")
        self.truth.data_may_be_lost = True
        self.kafka.delete_topic(topic)
        substitution.sleep(self.chance.number("before the recreation", 0.01, 0.01, 2.0, 0.5))
        self.kafka.create_topic(topic, count)
        for log in self.kafka.logs[topic].values():
            if self.chance.flag("without a leader at first", 0.2):
                self._without_leader(log, self.chance.number("until the first leader", 0.3, 0.1, 3.0))
        self.truth.recreated(topic)
        self._produce(topic)

    def _topic_is_gone(self) -> None:
        """A topic without records is deleted, and comes back later."""
        if "u" in self.kafka.logs and not self.truth.ever_had_records("u"):
            self.story.told("the empty topic u is deleted")
            count = len(self.kafka.logs["u"])
            self.truth.data_may_be_lost = True
            self.kafka.delete_topic("u")
            self.run.after(self.chance.number("gone", 5.0, 1.0, 20.0), lambda: self._comes_back("u", count))

    def _comes_back(self, topic: str, partitions: int) -> None:
        self.story.told(f"topic {topic} is back")
        self.kafka.create_topic(topic, partitions)
        self.truth.recreated(topic)

    def _partitions_added(self) -> None:
        topic = self._partition().topic
        if len(self.kafka.logs[topic]) < 6:
            self.story.told(f"{topic} gets another partition")
            self.kafka.create_topic(topic, len(self.kafka.logs[topic]) + 1)
            self.truth.added(topic)

    def _transaction(self) -> None:
        """A transaction begins and ends some time later, or with everything else."""
        tp = self._partition()
        log = self.kafka.logs[tp.topic][tp.partition]
        if log.stable is None:
            self.story.told(f"a transaction begins in {tp}")
            self.kafka.begin(*tp)
            seconds = self.chance.number("transaction", 2.0, 0.2, 15.0)
            self.run.after(seconds, lambda: self._end_transaction(log))

    def _end_transaction(self, log: FakeLog) -> None:
        log.stable = None
        log.append_count(1)  # the control record

    def _pause(self) -> None:
        if query := self._query(alive=True):
            seconds = self.chance.number("pause of a process", 2.0, 0.5, 15.0)
            assert query.life is not None
            query.life.process.paused_until = self.run.now + seconds
            self.truth.outage(seconds, f"{query.name} is suspended for {seconds:.1f} s")

    def _broker_stops(self) -> None:
        broker, seconds = self._broker(), self.chance.number("outage", 2.0, 0.5, 12.0)
        self.truth.outage(seconds, f"broker {broker.node} is down for {seconds:.1f} s")
        broker.stop()
        self.run.after(seconds, broker.start)

    def _broker_hangs(self) -> None:
        broker, seconds = self._broker(), self.chance.number("outage", 2.0, 0.5, 12.0)
        self.truth.outage(seconds, f"broker {broker.node} hangs for {seconds:.1f} s")
        broker.hung_until = self.run.now + seconds

    def _cut(self) -> None:
        if query := self._query(alive=True):
            assert query.life is not None
            broker, seconds = self._broker(), self.chance.number("outage", 2.0, 0.5, 20.0)
            link = self.net.link(query.life.process, broker)
            which = self.chance.pick("direction", "both", ("to broker", "to client"), 0.5)
            if which != "to client":
                link.to_broker = self.run.now + seconds
            if which != "to broker":
                link.to_client = self.run.now + seconds
            self.truth.outage(seconds, f"{query.name} and broker {broker.node} are cut ({which}) for {seconds:.1f} s")

    def _coordinator_moves(self) -> None:
        broker = self._broker()
        loading = self.chance.number("loading", 0.0, 0.1, 4.0, 0.5)
        self.truth.outage(loading, f"broker {broker.node} coordinates the group after {loading:.1f} s")
        former = self.kafka.coordinator
        self.kafka.move_coordinator(broker.node, loading)
        if former != broker.node and self.chance.flag("former coordinator is unaware", 0.3):
            self._stay_unaware(former)

    def _stay_unaware(self, former: int) -> None:
        """A former coordinator goes on answering for a while, with the offsets that it knows."""
        seconds = self.chance.number("unaware", 3.0, 1.0, 12.0)
        self.truth.outage(seconds, f"broker {former} does not know it for {seconds:.1f} s")
        self.kafka.former_coordinators.add(former)
        group = self.kafka.group(GROUP)
        old = dict(group.offsets), dict(group.epochs)

        @contextmanager
        def old_offsets() -> Iterator[None]:
            now, (group.offsets, group.epochs) = (group.offsets, group.epochs), old
            try:
                yield
            finally:
                group.offsets, group.epochs = now

        self.net.former[former] = self.run.now + seconds, old_offsets
        self.run.after(seconds, lambda: self.kafka.former_coordinators.discard(former))

    def _stale_metadata(self) -> None:
        broker, seconds = self._broker(), self.chance.number("stale", 2.0, 0.5, 12.0)
        if broker.node not in self.kafka._frozen:
            self.truth.outage(seconds, f"broker {broker.node} learns nothing for {seconds:.1f} s")
            self.kafka.freeze_metadata(broker.node)
            self.run.after(seconds, lambda: self.kafka.thaw_metadata(broker.node))

    # The end

    def _heal(self) -> None:
        self.story.told("everything heals")
        self.net.heal()
        if len(self.kafka.brokers) > 1 and self.chance.flag("a broker is gone for good", 0.15):
            self._lose_broker()
        for query in self.queries:
            query.max_batch_seconds, query.trigger = 0.1, 1.0
        self._restart_all()

    def _lose_broker(self) -> None:
        gone, *others = sorted(self.kafka.brokers, key=lambda _: self.chance.number("which is gone", 0.0, 0.0, 1.0))
        self.story.told(f"but broker {gone} is gone for good")
        self.kafka.brokers.pop(gone).stop()  # metadata names it no more
        for topic, logs in self.kafka.logs.items():
            for number, log in logs.items():
                if log.leader in (None, gone):
                    self.kafka.elect(topic, number, leader=others[0])
        if self.kafka.coordinator == gone:
            self.kafka.move_coordinator(others[0])

    def _until_finished(self) -> None:
        limit = self.run.now + HEALED_WITHIN
        finished = 0
        while finished < FINISHED_FOR:
            unfinished = self._unfinished()
            if unfinished and self.run.now > limit:
                raise Broken(f"I12: {HEALED_WITHIN:.0f} s after everything healed, {unfinished}")
            finished = 0 if unfinished or self.run.settled_at > self.run.now + network.MAX_LATENCY else finished + 1
            self._restart_all()
            for query in () if unfinished else self.queries:
                query.trigger = 2.0
            substitution.sleep(1.0)

    def _restart_all(self) -> None:
        for query in self.queries:
            if not query.alive:
                query.options["failOnDataLoss"] = "false"
                query.start()

    def _unfinished(self) -> str:
        for query in self.queries:
            if not query.alive:
                return f"{query.name} does not run"
        return self.truth.unfinished(GROUP, self.queries)

    def _check_members(self) -> None:
        """I8: each query has one member."""
        limit = self.run.now + QUIET_MEMBERS
        while True:
            self._restart_all()
            expected = [each for each in self.queries if "assign" not in each.options]
            found = list(self.truth.members(GROUP).values())
            if len(found) == len(expected) and all(any(each.client in name for name in found) for each in expected):
                return
            if self.run.now > limit:
                raise Broken(f"I8: the group has the members {found}, and the queries {[q.name for q in expected]}")
            substitution.sleep(1.0)

    def _stop_all(self) -> None:
        for query in self.queries:
            if query.alive:
                self._end(query)
        left = [each for each in self.kafka.group(GROUP).members.values() if each.instance is None]
        if left:
            raise Broken(f"I8: {[each.client_id for each in left]} are still members")


QUIET_MEMBERS = 90.0
"""Seconds within which the group forgets the members of killed queries."""


def run(seed: int, protocol: str, *, kept: Mapping[str, Any] | None = None, verbose: bool = False) -> Result:
    """Runs one seed, or what is kept of its draws. The modules must be substituted."""
    chance = Chance(seed, kept)
    substitution.generator.seed(seed)
    scheduler = Scheduler(chance, chance.pick("switches", 0.0, (0.02, 0.1, 0.3), 0.7))
    story = Story(scheduler)
    logger = logging.getLogger("spark_group_source")
    level = logger.level
    if verbose:
        logger.addHandler(story)
        logger.setLevel(logging.INFO)
    else:
        logger.setLevel(logging.CRITICAL + 1)
    failure: BaseException | None = None
    try:
        scheduler.run(lambda: Scenario(scheduler, chance, protocol, story).conduct())
    except Exception as error:
        failure = error
    finally:
        logger.removeHandler(story)
        logger.setLevel(level)
    return Result(seed, protocol, failure, story.lines, chance.kept, scheduler.steps, scheduler.now)
