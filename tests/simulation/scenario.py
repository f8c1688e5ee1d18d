"""One simulated run: a cluster, queries, an operator and faults, all out of one seed; then everything heals."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spark_group_source.offsets import OffsetRange, TopicPartition
from tests.fake import FakeKafka
from tests.fake.handlers import DESCRIBE, READ
from tests.fake.log import FakeLog
from tests.simulation import aims, network, spark, substitution
from tests.simulation.chance import Chance
from tests.simulation.network import Broken
from tests.simulation.reads import READS, Reads
from tests.simulation.scheduler import Lock, Process, Scheduler, Thread
from tests.simulation.spark import Query
from tests.simulation.truth import Truth

PROTOCOLS = ("classic", "consumer")
KINDS = (*PROTOCOLS, READS)
OTHERS_REQUESTS = {"classic": ("ConsumerGroupHeartbeat",), "consumer": ("SyncGroup", "Heartbeat")}
GROUP = "g"
HEALED_WITHIN = 150.0
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
        raised = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self.told(f"    [{self.run.process.name}] {record.levelname} {record.getMessage()}{raised}")


@dataclass(frozen=True)
class Shared:
    """What all queries of a run have in common. Texts are values of options, times are in seconds."""

    topics: list[str]
    count: int
    manual: bool
    rebalance: float
    trigger: float
    retry: str
    start: str
    assignor: str
    one_session: bool
    age: str
    pattern: bool
    other_client: bool
    isolation: str

    def is_other_client(self, number: int) -> bool:
        """Whether the query with this number stands for a client of another kind."""
        return self.other_client and number == self.count - 1


class Scenario:
    """The actors of one run."""

    def __init__(self, run: Scheduler, chance: Chance, protocol: str, story: Story) -> None:
        self.run, self.chance, self.story = run, chance, story
        self.protocol = protocol
        self.theme = chance.pick("theme", "", aims.DRAWN, 0.95)
        brokers = 1 + chance.pick(
            "brokers", 0, (1, 2), self._if((aims.TOPICS, aims.COORDINATORS, aims.ROLLING), 0.9, 0.5)
        )
        self.heartbeat = chance.pick("heartbeat interval", 1.0, (0.5, 2.0), 0.5)
        self.session = chance.pick("session", 6.0, (10.0, 45.0), self._if((aims.RUNS, aims.MOVES), 0.2, 0.5))
        self.kafka = FakeKafka(
            brokers=brokers,
            max_metadata=chance.pick("metadata", 4096, (60, 30, 0), self._if((aims.MOVES,), 0.3, 0.1)),
            heartbeat_interval=self.heartbeat,
            session_timeout=self.session,
        )
        self.truth = Truth(run, self.kafka, GROUP, story.told)
        self.net = network.Network(run, self.kafka.brokers, self.truth.troubles.fault)  # type: ignore[arg-type]
        self.net.handled, members = self.truth.handled, self.truth.membership
        self.net.answered = self.truth.answered
        members.heard, members.joins, members.unanswered = self.net.heard, self.net.joins, self.net.unanswered
        self.net.with_records, self.net.sent_by = self._with_records, self._sent_by
        self.net.arrived_late = self.truth.troubles.arrives_late
        network.Connection.network = self.net
        spark.Life.of_process.clear()
        self.calm_until = 0.0
        aimed = chance.flag("strikes", self._if((aims.ROLLING,), 0.6, 0.9))
        if aimed:
            self._aim_strikes()
        self.hesitation = chance.pick("hesitation", 0.0, (0.01, 0.04), self._if((aims.MOVES, aims.COMMITS), 0.5, 0.2))
        if self.hesitation:
            for place in (*aims.FUNCTIONS, *aims.THEMES[""]):
                run.places.setdefault(place, lambda place=place: self._hesitate(place))  # type: ignore[misc]
        self.trouble = 0.0
        if not aimed:
            self.trouble = chance.pick("trouble", 0.0, (0.0, 0.01, 0.04, 0.12), self._if((aims.ROLLING,), 0.1, 0.9))
        self.target: Query | None = None
        self.healed = False
        self.one_event = Lock()
        self.queries: list[Query] = []
        self.empty: TopicPartition | None = None
        self.without_records = ""
        self.weights: list[float] = []
        self.often = chance.pick("events", 0.3, (0.15, 0.6, 0.9), 0.7)
        self.rewound_at = -MAX_SKEW
        self.duration = chance.number("duration", 10.0, 5.0, 22.0)
        self.runs = chance.pick("AvailableNow runs", 0.2, (0.0, 0.8), self._if((aims.RUNS,), 1.0, 0.3))
        if self.theme == aims.RUNS:
            self.runs = 0.8
        self.slowness = 1.0

    def _aim_strikes(self) -> None:
        """Draws the places at which this run strikes, and how often."""
        chance, places = self.chance, self.run.places
        asked = [each for each in aims.THEMES[self.theme] if each not in OTHERS_REQUESTS[self.protocol]]
        holds = self._if((aims.MOVES,), 0.8, 0.3)
        choices: list[tuple[str, str, Sequence[str], float]] = [
            ("a request", "OffsetCommit", asked, self._if((aims.ROLLING,), 0.3, 1.0)),
            ("another request", asked[0], asked[1:], 0.4),
            ("a call", aims.CALLS[0], aims.CALLS[1:], self._if((aims.ROLLING,), 0.9, 0.35)),
            ("a function", aims.FUNCTIONS[0], aims.FUNCTIONS[1:], holds),
            ("another function", aims.FUNCTIONS[0], aims.FUNCTIONS[1:], holds / 2),
        ]
        rates: dict[str, float] = {}
        for kind, first, others, likely in choices:
            if not chance.flag(f"strikes at {kind}", likely):
                continue
            is_other_place = 0.99
            if first == "OffsetCommit":
                is_other_place = 0.6
            place = chance.pick(kind, first, others, is_other_place)
            rates[place] = chance.pick(f"rate at {kind}", 0.3, (0.05, 1.0), 0.6)
        for place, rate in rates.items():
            places[place] = lambda place=place, rate=rate: self._pass(place, rate)  # type: ignore[misc]

    def _if(self, themes: tuple[str, ...], then: float, otherwise: float) -> float:
        return then if self.theme in themes else otherwise

    def conduct(self) -> None:
        """The whole run."""
        self._create()
        self.net.fault_probability = self.trouble
        self.run.after(1.0, self._look, awaited=False)
        while self.run.now < self.duration:
            with self.one_event:
                self._event()
            substitution.sleep(self.slowness * self.chance.number("pause", 0.6, 0.05, 1.5))
        with self.one_event:
            self.healed = True
            self._heal()
        self._until_finished()
        self._check_members()
        self._stop_all()

    def _look(self) -> None:
        """Checks once a second what must not last."""
        self.truth.note_removals()
        self.truth.contract.check_soon()
        self.run.after(1.0, self._look, awaited=False)

    def _create(self) -> None:
        topics = self._create_topics()
        shared = self._draw_shared(topics)
        for number in range(shared.count):
            options = self._options(number, shared)
            if options is not None:
                self.queries.append(self._create_query(number, options, shared))
        self._slow_down_for_long_batches()
        for query in self.queries:
            if not self.chance.flag("starts later", 0.3):
                self._begin(query)

    def _create_topics(self) -> list[str]:
        chance = self.chance
        topics: list[str] = chance.pick("topics", ["t"], (["t", "u"],), self._if((aims.TOPICS,), 0.7, 0.15))
        if len(self.kafka.brokers) > 1 and chance.flag("lags at the start", self._if((aims.TOPICS,), 0.3, 0.0)):
            self.kafka.create_topic(topics[0])  # a named topic that nobody knows is waited for
            self._stale_metadata()
        old = chance.flag("the first records are gone", self._if((aims.TOPICS,), 0.5, 0.1))
        for topic in topics:
            self.kafka.create_topic(topic, chance.pick("partitions", 2, (1, 3, 4), 0.7))
            if chance.flag("an empty partition", 0.2):
                self.empty = TopicPartition(topic, len(self.kafka.logs[topic]) - 1)
            self._produce(topic, seconds_ago=60.0)
            for log in self.kafka.logs[topic].values():
                log.start = 0
                if old:
                    log.start = log.end // 2
        if "u" in topics and chance.flag("an empty topic", 0.5):
            self.without_records = "u"
            for log in self.kafka.logs["u"].values():
                log.start = log.end = 0
        return topics

    def _draw_shared(self, topics: list[str]) -> Shared:
        chance = self.chance
        count = chance.pick("queries", 1, (2, 2, 3), self._if((aims.MOVES,), 0.7, 0.85))
        manual = chance.flag("assign", self._if((aims.COORDINATORS,), 0.25, 0.05))
        timeouts: tuple[float, ...] = (12.0, 150.0, 150.0)
        if self.theme == aims.RUNS:
            timeouts = (12.0,)
        rebalance = chance.pick("rebalance timeout", 20.0, timeouts, 0.8)
        trigger = chance.pick("trigger", 1.0, (20.0, 60.0, 0.5), self._if((aims.COMMITS,), 0.8, 0.2))
        retry = chance.pick("retry interval", "1000", ("5000",), 0.5)
        start = chance.pick("startingOffsets", "earliest", ("latest",), 0.4)
        assignor = chance.pick("assignor", "cooperative-sticky", ("range",), 0.4)
        one_session = chance.flag("one session", 0.1)
        no_new_topics = aims.MOVES, aims.COMMITS, aims.LOGS, aims.COORDINATORS, aims.ROLLING
        age = chance.pick("metadata age", "10000", ("300000",), self._if(no_new_topics, 0.5, 0.0))
        pattern = chance.flag("pattern", self._if((aims.TOPICS,), 0.3, 0.0))
        if pattern:
            age = "10000"  # so long after it is created, a topic is not known
        other_client = count > 1 and chance.flag("another client", self._if((aims.RUNS,), 0.3, 0.0))
        isolation = chance.pick("isolation", "read_uncommitted", ("read_committed",), 0.4)
        return Shared(
            topics, count, manual, rebalance, trigger, retry, start, assignor, one_session, age, pattern, other_client,
            isolation,
        )  # fmt: skip

    def _options(self, number: int, shared: Shared) -> dict[str, str] | None:
        """The options of a query; ``None`` if it would have no partitions."""
        chance = self.chance
        options = {
            "kafka.bootstrap.servers": self.kafka.bootstrap_servers,
            "kafka.group.id": GROUP,
            "startingOffsets": shared.start,
            "failOnDataLoss": chance.pick("failOnDataLoss", "true", ("false",), 0.5),
            "kafka.isolation.level": shared.isolation,
            "kafka.metadata.max.age.ms": shared.age,
            "kafka.request.timeout.ms": "3000",
            "offsetCommit.timeoutMs": "3000",
            "offsetCommit.retryIntervalMs": shared.retry,
        }
        if shared.manual:
            assigned = self._assigned(number, shared)
            if not assigned:
                return None
            options["assign"] = json.dumps(assigned)
        else:
            options |= self._membership_options(number, shared)
        if limit := chance.pick("maxOffsetsPerTrigger", "", ("2", "7", "20"), 0.3):
            options["maxOffsetsPerTrigger"] = limit
        if chance.flag("onCommitFailure", self._if((aims.COMMITS,), 0.3, 0.05)):
            options |= {"onCommitFailure": "fail", "offsetCommit.numRetries": "1"}
        resets = chance.flag("resetOffsetsOnStart", self._if((aims.MOVES, aims.RUNS), 0.2, 0.05))
        if resets and not shared.is_other_client(number):
            options["resetOffsetsOnStart"] = "true"
        return options

    def _assigned(self, number: int, shared: Shared) -> dict[str, list[int]]:
        """The partitions of a query with ``assign``: each partition belongs to one of the queries."""
        assigned: dict[str, list[int]] = {}
        for topic in shared.topics:
            for partition in self.kafka.logs[topic]:
                if partition % shared.count == number:
                    assigned.setdefault(topic, []).append(partition)
        return assigned

    def _membership_options(self, number: int, shared: Shared) -> dict[str, str]:
        options = {"subscribe": ",".join(shared.topics)}
        if shared.pattern:
            options = {"subscribePattern": "|".join(shared.topics)}
        options["kafka.max.poll.interval.ms"] = str(round(shared.rebalance * 1000))
        if self.protocol == "consumer":
            options |= {"kafka.group.protocol": "consumer", "session": str(self.session)}
        else:
            options["kafka.session.timeout.ms"] = str(round(self.session * 1000))
            options["kafka.heartbeat.interval.ms"] = str(round(self.heartbeat * 1000))
            options["kafka.partition.assignment.strategy"] = shared.assignor
        if self.chance.flag("static", self._if((aims.COMMITS, aims.COORDINATORS), 0.3, 0.15)):
            options["kafka.group.instance.id"] = f"i{number}"
        return options

    def _create_query(self, number: int, options: dict[str, str], shared: Shared) -> Query:
        chance = self.chance
        query = Query(
            self.run,
            self.truth,
            f"Q{number + 1}",
            options,
            reports=chance.flag("reports", 0.75),
            spark_4_1=chance.flag("Spark 4.1", 0.15),
        )
        query.wraps = query.spark_4_1 and chance.flag("Spark's wrapper", 0.3)
        query.skew = chance.number("clock behind", 0.0, 0.0, MAX_SKEW, 0.3)
        if shared.other_client:  # which has no lineages, and the query in its place knows its own
            query.skew = 0.0
        query.alone, query.shares_session = shared.count == 1, shared.one_session
        query.is_other_client = shared.is_other_client(number)
        query.trigger = chance.pick("own trigger", shared.trigger, (1.0,), 0.3)
        query.slowest_trigger = query.trigger
        long = self._if((aims.RUNS, aims.COMMITS, aims.MOVES), 0.6, 0.3)
        query.max_batch_seconds = chance.pick("batch", 0.5, (3.0, 15.0, 40.0, 100.0), long)
        return query

    def _slow_down_for_long_batches(self) -> None:
        longest = max((max(query.max_batch_seconds, query.trigger) for query in self.queries), default=0.0)
        if longest <= 10:
            return
        self.slowness = 4.0  # so that events surround several batches
        self.duration *= self.slowness
        for query in self.queries:
            query.trigger = query.slowest_trigger = min(query.trigger * self.slowness, 20.0)

    # Events

    def _event(self) -> None:
        self._produce(self.chance.pick("topic", "t", ("u",) if "u" in self.kafka.logs else (), 0.5))
        events = self._events
        self.weights = self.weights or self.chance.weights(len(events))
        happens = self.chance.pick("event", None, events, self.often, self.weights)
        if happens is not None:
            happens()

    @property
    def _lives(self) -> tuple[Callable[[], None], ...]:
        return self._start, self._start, self._crash, self._stop, self._stop_another

    @property
    def _events(self) -> tuple[Callable[[], None], ...]:
        """What may happen in a run of this theme."""
        outages = self._broker_stops, self._broker_hangs, self._cut, self._coordinator_moves, self._stale_metadata
        by_theme: dict[str, tuple[Callable[[], None], ...]] = {
            aims.TOPICS: (
                self._recreate,
                self._recreate,
                self._topic_is_gone,
                self._partitions_added,
                self._leaderless,
            ),
            aims.RUNS: (self._leaderless, self._unclean, self._transaction, self._retention, self._partitions_added),
            aims.MOVES: (*3 * (self._rewind_running,), self._rewind, self._lose_checkpoint, self._remove),
            aims.COMMITS: (self._remove, self._remove, self._stop),
            aims.LOGS: (self._elect, self._elect, self._unclean, self._unclean, self._leaderless, self._rewind),
            aims.COORDINATORS: (self._coordinator_moves, self._coordinator_moves, *outages, self._pause, self._remove),
            aims.ROLLING: (),
        }
        every = {each.__name__: each for events in by_theme.values() for each in events}
        every |= {"_delete_group": self._delete_group}
        orderly = self._coordinator_moves_in_order, self._moves_before_a_stop
        later: dict[str, tuple[Callable[[], None], ...]] = {
            aims.ROLLING: (*orderly, self._moves_before_a_stop, self._moves_before_a_stop, self._elect),
            aims.COORDINATORS: (*orderly, self._address_is_taken_over),
            aims.LOGS: (self._address_is_taken_over,),
            aims.COMMITS: (self._permission_is_missing, self._group_permission_is_missing),
            "": (*orderly, self._address_is_taken_over, self._permission_is_missing, self._group_permission_is_missing),
        }
        return self._lives + by_theme.get(self.theme, tuple(every.values())) + later.get(self.theme, ())

    def _query(self, alive: bool) -> Query | None:
        if self.target is not None and self.target.alive is alive:
            return self.target
        found = [each for each in self.queries if each.alive is alive]
        if not found:
            return None
        return self.chance.pick("which query", found[0], found[1:], 0.5)

    def _partition(self) -> TopicPartition:
        found = [TopicPartition(topic, number) for topic, logs in sorted(self.kafka.logs.items()) for number in logs]
        return self.chance.pick("which partition", found[0], found[1:], 0.7)

    def _broker(self) -> Any:
        found = list(self.kafka.brokers.values())
        return self.chance.pick("which broker", found[0], found[1:], 0.7)

    def _produce(self, topic: str, seconds_ago: float = 0.0) -> None:
        timestamp = round(1000 * (substitution.START_OF_TIME + self.run.now - seconds_ago))
        for number, log in self.kafka.logs[topic].items():
            if self.empty != (topic, number) and topic != self.without_records and log.leader is not None:
                log.append_count(round(self.chance.number("records", 5, 0, 15, 0.5)), timestamp)

    def _pass(self, place: str, rate: float) -> str:
        """A thread passes a place: returns what its request suffers."""
        if self.healed or self.run.now < self.calm_until:
            return ""
        if place in aims.REQUESTS and self.truth.membership.rebalancing():
            rate = max(rate, 0.5)
        if not self.chance.flag(f"strike at {place}", rate):
            return ""
        self.calm_until = self.run.now + aims.APART
        return self._strike(place)

    def _strike(self, place: str) -> str:
        """Something happens where a thread passes: returns what its request suffers."""
        process, run, chance = self.run.process, self.run, self.chance
        self.story.told(f"STRIKE: {process.name}: {place}")
        life, fault = spark.Life.of_process.get(process.name), ""
        if place in aims.REQUESTS:
            fault = chance.pick("its fault", network.REFUSED, (*network.FAULTS, network.LATE_REQUEST), 0.7)
        likely = 0.9
        if fault:
            likely = 0.6
        event = chance.pick("event at a strike", None, self._events, likely)
        if event is not None:
            self._begin_event(event, life, fault)
        likely = 0.15
        if place in aims.FUNCTIONS:
            likely = 0.8
        hold = chance.pick("hold", 0.0, aims.HOLDS, likely)
        if hold and life is not None and run.current is not None:
            self._hold(process, place, hold)
            run.block(run.now + hold)
        return fault

    def _begin_event(self, event: Callable[[], None], life: spark.Life | None, fault: str) -> None:
        """Lets an event happen beside a strike: now, or when the late request arrives."""
        query = None
        if life is not None:
            query = life.query
        happens = Thread(target=self._happen, args=(event, query), process=self.run.outside)
        if fault == network.LATE_REQUEST:
            self.run.places[network.LATE_ARRIVES] = lambda: self._at_arrival(happens)
        else:
            happens.start()

    def _at_arrival(self, happens: Thread) -> str:
        del self.run.places[network.LATE_ARRIVES]
        happens.start()
        return ""

    def _hold(self, process: Process, place: str, seconds: float) -> None:
        """A thread stands still: up to one second no promise suffers."""
        what = f"a thread of {process.name} is held for {seconds} s"
        self.truth.troubles.hesitates(process, place, seconds)
        if seconds <= 1.0:
            self.story.told(what)
        else:
            self.truth.troubles.outage(seconds, what)

    def _hesitate(self, place: str) -> str:
        """A thread goes on some time later, as on a busy machine."""
        thread = self.run.current
        if thread is None or thread.process.name not in spark.Life.of_process or self.healed:
            return ""
        if self.chance.flag("a thread hesitates", self.hesitation):
            seconds = self.chance.number("hesitates", 0.3, 0.02, 1.0)
            self.truth.troubles.hesitates(thread.process, place, seconds)
            self.run.block(self.run.now + seconds)
        return ""

    def _happen(self, event: Callable[[], None], query: Query | None) -> None:
        with self.one_event:
            self.target = query
            if not self.healed:
                event()
            self.target = None

    def _start(self) -> None:
        if query := self._query(alive=False):
            self._begin(query)

    def _begin(self, query: Query) -> None:
        if not query.alive:
            continues = query.spark_4_1 or query.is_other_client
            query.start(available_now=not continues and self.chance.flag("AvailableNow", self.runs))

    def _crash(self) -> None:
        if query := self._query(alive=True):
            self._kill(query)

    def _kill(self, query: Query) -> None:
        self.story.told(f"{query.name} is killed")
        query.crash()
        if self.chance.flag("restarts soon", 0.6):
            if self.chance.flag("meanwhile", 0.5):
                others = self._events[len(self._lives) :]
                self.chance.pick("what happens meanwhile", others[0], others[1:], 0.9)()
            self.run.after(self.chance.number("down", 0.2, 0.05, 3.0), lambda: self._begin(query))

    def _stop_another(self) -> None:
        for query in self.queries:
            if query.alive and query is not self.target:
                self.story.told(f"{query.name} is to stop")
                self._end(query)
                return

    def _remove(self) -> None:
        if query := self._query(alive=True):
            self._expel(query)

    def _expel(self, query: Query) -> None:
        """An operator removes its member from the group."""
        self.story.told(f"{query.name} is removed from the group")
        self.truth.expelled(query)
        for member in [each for each in self.kafka.group(GROUP).members.values() if query.client in each.client_id]:
            self.kafka.expire(GROUP, member.id)

    def _expel_all(self) -> None:
        for query in self.queries:
            if query.alive:
                self._expel(query)
        self._expire()

    def _rewind_running(self) -> None:
        """An operator removes all members, and moves the group before they join again."""
        if not any("assign" in query.options for query in self.queries):
            if self.run.now - self.rewound_at < MAX_SKEW:
                substitution.sleep(MAX_SKEW)
            self._expel_all()
            self._move_group()

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
        if self.run.now - self.rewound_at < MAX_SKEW:
            substitution.sleep(MAX_SKEW)
        self._expel_all()  # one may have started meanwhile, which is a member, or sees no move
        if not any(query.alive and "assign" in query.options for query in self.queries):
            self._move_group()
        order = sorted(self.queries, key=lambda _: self.chance.number("order", 0.0, 0.0, 1.0))
        for query in order:
            if not query.alive:
                query.start()
            substitution.sleep(self.chance.number("between starts", 0.1, 0.1, 4.0))

    def _move_group(self) -> None:
        tp = self._partition()
        log = self.kafka.logs[tp.topic][tp.partition]
        offset = round(self.chance.number("rewind to", log.start, log.start, log.end))
        topic_id, logged = str(self.kafka.ids[tp.topic]), list[int]()
        for query in self.queries:
            for borders in query.borders(tp.topic, topic_id, tp.partition):
                logged += borders
        offset = self.chance.pick("rewind to a border", offset, [each for each in logged if log.start <= each], 0.5)
        self.rewound_at = self.run.now
        self.net.former.clear()  # a member that the present coordinator has removed cannot join at a former one
        self.story.told(f"an operator sets {tp} to {offset}")
        self.kafka.commit(GROUP, {tuple(tp): offset})  # type: ignore[dict-item]
        self.truth.moved(*tp, offset)

    def _expire(self) -> None:
        """The sessions of killed members end."""
        for member in list(self.kafka.group(GROUP).members):
            self.kafka.expire(GROUP, member)

    def _delete_group(self) -> None:
        if not any(each.alive for each in self.queries):
            self._expire()
            self.story.told("an operator deletes the group")
            self.kafka.delete_group(GROUP)
            self.truth.forgotten()

    def _retention(self) -> None:
        tp = self._partition()
        log = self.kafka.logs[tp.topic][tp.partition]
        start = round(self.chance.number("retention to", 0, log.start, log.end))
        self.story.told(f"retention deletes the records of {tp} before {start}")
        self.kafka.truncate(*tp, max(start, log.start))
        self.truth.truncated(*tp, start)

    def _elect(self) -> None:
        tp = self._partition()
        leader = self._broker().node
        self._learned_late()
        self.story.told(f"broker {leader} is elected for {tp}")
        self.kafka.elect(*tp, leader=leader)

    def _leaderless(self) -> None:
        tp, seconds = self._partition(), self.chance.number("leaderless", 2.0, 0.3, 12.0)
        log = self.kafka.logs[tp.topic][tp.partition]
        if log.leader is not None:
            self.truth.troubles.outage(seconds, f"{tp} has no leader for {seconds:.1f} s")
            self._without_leader(log, seconds)

    def _without_leader(self, log: FakeLog, seconds: float) -> None:
        leader, log.leader = log.leader, None
        self.run.after(seconds, lambda: log.elect(log.leader or leader, None))

    def _unclean(self) -> None:
        tp = self._partition()
        log = self.kafka.logs[tp.topic][tp.partition]
        end = round(self.chance.number("unclean end", log.end, log.start, log.end))
        self.story.told(f"an unclean election for {tp} keeps the records before {end}")
        before = log.end
        self.kafka.elect(*tp, end=end)
        self.truth.cut_short(*tp, end, before)

    def _recreate(self) -> None:
        topic = self._partition().topic
        count = len(self.kafka.logs[topic])
        self.story.told(f"topic {topic} is deleted and recreated")
        self.truth.data_may_be_lost = True
        before = self.chance.flag("late learns of the deletion, too", 0.5)
        if before:
            self._learned_late()
        self._delete(topic)
        substitution.sleep(self.chance.number("before the recreation", 0.01, 0.01, 2.0, 0.5))
        if not before:
            self._learned_late()
        self.kafka.create_topic(topic, count)
        for log in self.kafka.logs[topic].values():
            if self.chance.flag("without a leader at first", 0.4):
                self._without_leader(log, self.chance.number("until the first leader", 0.3, 0.1, 3.0))
        self.truth.recreated()
        self._produce(topic)

    def _delete(self, topic: str) -> None:
        self.kafka.delete_topic(topic)
        self._know_in_order()

    def _know_in_order(self) -> None:
        """Brokers learn all in one order: who knows that a topic was deleted knows that it was replaced before that."""
        for node in self.net.former.keys() - self.kafka._frozen.keys():
            del self.net.former[node]
            self.kafka.former_coordinators.discard(node)

    def _topic_is_gone(self) -> None:
        """A topic without records is deleted, and comes back later."""
        if "u" in self.kafka.logs and not any(log.end for log in self.kafka.logs["u"].values()):
            self.story.told("the empty topic u is deleted")
            count = len(self.kafka.logs["u"])
            self.truth.data_may_be_lost = True
            self._delete("u")
            self.run.after(self.chance.number("gone", 5.0, 1.0, 20.0), lambda: self._comes_back("u", count))

    def _comes_back(self, topic: str, partitions: int) -> None:
        self.story.told(f"topic {topic} is back")
        self._learned_late()
        self.kafka.create_topic(topic, partitions)
        self.truth.recreated()

    def _partitions_added(self) -> None:
        topic = self._partition().topic
        if len(self.kafka.logs[topic]) < 6:
            self.story.told(f"{topic} gets another partition")
            self._learned_late()
            self.kafka.create_topic(topic, len(self.kafka.logs[topic]) + 1)

    def _transaction(self) -> None:
        """A transaction begins and ends some time later, or with everything else."""
        tp = self._partition()
        log = self.kafka.logs[tp.topic][tp.partition]
        if log.stable is None:
            self.story.told(f"a transaction begins in {tp}")
            self.kafka.begin(*tp)
            seconds = self.chance.number("transaction", 2.0, 0.2, 30.0)
            self.run.after(seconds, lambda: self._end_transaction(log))

    def _end_transaction(self, log: FakeLog) -> None:
        if log.leader is None:
            self.run.after(1.0, lambda: self._end_transaction(log))
            return
        log.stable = None
        log.append_marker()

    def _with_records(self, ranges: Iterable[OffsetRange]) -> set[TopicPartition]:
        """What a consumer would find that reads these ranges."""
        found: set[TopicPartition] = set()
        for each in ranges:
            if each.topic not in self.kafka.logs:
                continue
            log = self.kafka.logs[each.topic][each.partition]
            if log.after_last_record(each.end) > each.start:
                found.add(each.tp)
        return found

    def _sent_by(self, process: Process, api: str, request: Any) -> None:
        """A query stands for a client of another kind: its commits are the offsets after the last record, as those of
        librdkafka and Spring, and have no tag."""
        life = spark.Life.of_process.get(process.name)
        if life is None or not life.query.is_other_client or api != "OffsetCommit":
            return
        names, held = self.kafka.names(), self.kafka.group(GROUP).offsets
        for topic in request.topics:
            name = topic.name
            if request.version >= 10:
                name = names.get(topic.topic_id, "")
            if name not in self.kafka.logs:
                continue
            for part in topic.partitions:
                tp, log = (name, part.partition_index), self.kafka.logs[name][part.partition_index]
                part.committed_offset = log.after_last_record(
                    part.committed_offset, held.get(tp, (part.committed_offset, ""))[0]
                )
                part.committed_metadata = ""

    def _pause(self) -> None:
        if query := self._query(alive=True):
            seconds = self.chance.number("pause of a process", 2.0, 0.5, 15.0)
            assert query.life is not None
            query.life.process.paused_until = self.run.now + seconds
            self.truth.troubles.outage(seconds, f"{query.name} is suspended for {seconds:.1f} s")

    def _broker_stops(self) -> None:
        broker, seconds = self._broker(), self.chance.number("outage", 2.0, 0.5, 12.0)
        self.truth.troubles.outage(seconds, f"broker {broker.node} is down for {seconds:.1f} s")
        broker.stop()
        self._taken_over(broker)
        self.run.after(seconds, lambda: self._returns(broker))

    def _broker_hangs(self) -> None:
        broker, seconds = self._broker(), self.chance.number("outage", 2.0, 0.5, 12.0)
        taken_over = self._taken_over(broker)
        seconds = 200.0 if taken_over and self.chance.flag("for long", 0.3) else seconds
        self.truth.troubles.outage(seconds, f"broker {broker.node} hangs for {seconds:.1f} s")
        broker.hung_until = self.run.now + seconds
        self.run.after(seconds, lambda: self._returns(broker))

    def _permission_is_missing(self) -> None:
        """Access rules are replaced, and lack for a while what they allowed before."""
        topic, seconds = self._partition().topic, self.chance.number("missing", 2.0, 0.5, 12.0)
        if topic not in self.kafka.denied:
            self.truth.troubles.outage(seconds, f"nobody may read {topic} for {seconds:.1f} s")
            self.kafka.denied[topic] = self.chance.pick("denied", READ, (DESCRIBE,), 0.4)
            self.run.after(seconds, lambda: self.kafka.denied.pop(topic, None))

    def _group_permission_is_missing(self) -> None:
        """The same for the group."""
        seconds = self.chance.number("missing", 2.0, 0.5, 12.0)
        if GROUP not in self.kafka.denied_groups:
            self.truth.troubles.outage(seconds, f"nobody may read the group for {seconds:.1f} s")
            self.kafka.denied_groups.add(GROUP)
            self.run.after(seconds, lambda: self.kafka.denied_groups.discard(GROUP))

    def _address_is_taken_over(self) -> None:
        """A broker is down, and one of another cluster gets its address: a reused IP, or a stale name."""
        broker, seconds = self._broker(), self.chance.number("outage", 2.0, 0.5, 12.0)
        if self._answers(broker):
            self.truth.troubles.outage(
                seconds, f"another cluster has the address of broker {broker.node} for {seconds:.1f} s"
            )
            broker.stop()
            self._taken_over(broker)
            stranger = network.Broker(broker.node, broker.handle, broker.faults)
            stranger.cluster_id = "another"
            self.net.know_cluster |= {
                each.life.process.name for each in self.queries if each.life and each.checkpoint.names_cluster
            }
            stranger.start()
            self.run.after(seconds, lambda: self._leaves_address(stranger, broker))

    def _leaves_address(self, stranger: Any, broker: Any) -> None:
        stranger.stop()
        if self.net.brokers[broker.port] is stranger:
            self._returns(broker)

    def _returns(self, broker: Any) -> None:
        self.kafka.fenced.discard(broker.node)
        broker.start()

    def _taken_over(self, broker: Any) -> bool:
        """Whether other brokers take over what this one leads."""
        others = [each for each in self.kafka.brokers if each != broker.node]
        if not others or not self.chance.flag("others take over", 0.5):
            return False
        seconds = self.chance.number("until others take over", 1.0, 0.3, 6.0)
        Thread(target=self._take_over, args=(broker.node, others[0], seconds), process=self.run.outside).start()
        return True

    def _take_over(self, broker: int, successor: int, seconds: float) -> None:
        substitution.sleep(seconds)
        if successor not in self.kafka.brokers:
            return  # it is gone for good
        self.story.told(f"broker {successor} takes over what {broker} led")
        former: Any = self.kafka.brokers.get(broker)
        if former is not None and not self._answers(former):
            self.kafka.fenced.add(broker)
        for topic, logs in self.kafka.logs.items():
            for number, log in logs.items():
                if log.leader == broker:
                    self.kafka.elect(topic, number, leader=successor)
        if self.kafka.coordinator == broker:
            self.net.former.pop(successor, None)
            self._learn(lambda: self.kafka.move_coordinator(successor))
            self.truth.membership.coordinated_since = self.run.now

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
            self.truth.troubles.outage(
                seconds, f"{query.name} and broker {broker.node} are cut ({which}) for {seconds:.1f} s"
            )

    def _coordinator_moves(self) -> None:
        broker = self._broker()
        loading = self.chance.number("loading", 0.0, 0.1, 4.0, 0.5)
        self.truth.troubles.outage(loading, f"broker {broker.node} coordinates the group after {loading:.1f} s")
        former = self.kafka.coordinator
        self.net.former.pop(broker.node, None)  # it reads the group's offsets again
        self._learn(lambda: self.kafka.move_coordinator(broker.node, loading))
        self.truth.membership.coordinated_since = self.run.now + loading
        if former != broker.node and self.chance.flag("former coordinator is unaware", 0.3):
            self._stay_unaware(former)

    def _coordinator_moves_in_order(self) -> None:
        """As in a rolling restart, which waits until all is well: the former coordinator knows that it is none, and the
        next one answers while it loads."""
        if not self._all_is_well():
            return
        broker, loading = self._broker(), self.chance.number("short load", 0.2, 0.0, 2.0)
        what = f"broker {broker.node} coordinates the group in order, after {loading:.1f} s"
        self.truth.coordinator_moves(loading, what)
        self.kafka.move_coordinator(broker.node, loading)

    def _all_is_well(self) -> bool:
        """Whether all brokers answer, and know what the others know."""
        if self.kafka._frozen or self.net.former or self.truth.troubles.recent_faults:
            return False
        brokers: dict[int, Any] = self.kafka.brokers
        return all(map(self._answers, brokers.values()))

    def _answers(self, broker: Any) -> bool:
        return bool(broker.up) and broker.hung_until <= self.run.now

    def _moves_before_a_stop(self) -> None:
        """Brokers and queries are restarted at the same time."""
        self._coordinator_moves_in_order()
        substitution.sleep(self.chance.number("until the stop", 0.2, 0.0, 1.0))
        self._stop()

    def _stay_unaware(self, former: int) -> None:
        """A former coordinator goes on answering for a while, with the offsets that it knows."""
        seconds = self.chance.number("unaware", 3.0, 1.0, 12.0)
        self.truth.troubles.outage(seconds, f"broker {former} does not know it for {seconds:.1f} s")
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

    def _learned_late(self) -> None:
        """What happens next, one broker learns late, perhaps while another one does not answer."""
        likely = self._if((aims.TOPICS,), 0.6, 0.1)
        if not self.healed and len(self.kafka.brokers) > 1 and self.chance.flag("a broker learns it late", likely):
            self._stale_metadata()
            if self.chance.flag("and another one hangs", 0.3):
                self._broker_hangs()

    def _stale_metadata(self) -> None:
        broker, seconds = self._broker(), self.chance.number("stale", 2.0, 0.5, 12.0)
        if broker.node not in self.kafka._frozen:
            self.truth.troubles.outage(seconds, f"broker {broker.node} learns nothing for {seconds:.1f} s")
            self.kafka.freeze_metadata(broker.node)
            self.run.after(seconds, lambda: self._thaw(broker.node))

    def _thaw(self, node: int) -> None:
        if node in self.kafka._frozen:
            self._learn(lambda: self.kafka.thaw_metadata(node))
            self._know_in_order()

    def _learn(self, change: Callable[[], None]) -> None:
        """A coordinator may learn now that a topic was deleted, and delete the commits in its successor with those."""
        held = set(self.kafka.group(GROUP).offsets)
        change()
        for tp in held - self.kafka.group(GROUP).offsets.keys():
            self.truth.lost_commit(*tp)

    # The end

    def _heal(self) -> None:
        self.story.told("everything heals")
        self.kafka.denied.clear()
        self.kafka.denied_groups.clear()
        brokers: dict[int, Any] = self.kafka.brokers
        for broker in brokers.values():
            if self.net.brokers[broker.port] is not broker:  # the other cluster leaves the address
                self.net.brokers[broker.port].stop()
                broker.start()
        self.net.heal()
        self.kafka.fenced.clear()
        for node in list(self.kafka._frozen):
            self._thaw(node)
        if len(self.kafka.brokers) > 1 and self.chance.flag("a broker is gone for good", 0.25):
            self._lose_broker()
        for query in self.queries:
            query.max_batch_seconds = 0.1
        if any(query.is_other_client for query in self.queries):
            self._last_runs()
        self._restart_all()

    def _last_runs(self) -> None:
        """AvailableNow runs beside a client of another kind, and nothing follows their targets any more."""
        for log in self._logs():
            self._end_transaction(log)
        for query in self.queries:
            if not query.is_other_client and not query.alive:
                self._begin(query)

    def _logs(self) -> list[FakeLog]:
        """The logs of all partitions."""
        found: list[FakeLog] = []
        for logs in self.kafka.logs.values():
            found += logs.values()
        return found

    def _lose_broker(self) -> None:
        gone, *others = sorted(self.kafka.brokers, key=lambda _: self.chance.number("which is gone", 0.0, 0.0, 1.0))
        self.truth.troubles.outage(0.0, f"but broker {gone} is gone for good")
        self.kafka.brokers.pop(gone).stop()  # metadata names it no more
        for log in self._logs():
            if log.leader is None:
                log.leader = gone
        self._take_over(gone, others[0], 0.0)

    def _until_finished(self) -> None:
        healed, limit = self.run.now, self.run.now + HEALED_WITHIN
        finished = 0
        while finished < FINISHED_FOR:
            if self._has_batch_from_before(healed):
                limit = self.run.now + HEALED_WITHIN  # for what waits for this batch
            unfinished = self.truth.contract.unfinished()
            if unfinished and self.run.now > limit:
                raise Broken(f"{unfinished}, {HEALED_WITHIN:.0f} s after everything healed")
            is_settled = self.run.settled_at <= self.run.now + network.MAX_LATENCY
            if is_settled and not unfinished:
                finished += 1
            else:
                finished = 0
            self._restart_all()
            for query in self.queries:
                query.trigger = 2.0
                if unfinished:
                    query.trigger = _quick_trigger(query)
            substitution.sleep(1.0)

    def _has_batch_from_before(self, healed: float) -> bool:
        """Whether a long batch still runs that was planned before everything healed."""
        for batch in self.truth.batches.values():
            if batch.ranges and not batch.done and batch.planned_at < healed:
                return True
        return False

    def _restart_all(self) -> None:
        for query in self.queries:
            if not query.alive:
                query.options["failOnDataLoss"] = "false"
                query.start()

    def _check_members(self) -> None:
        """I8: each query has one member. It joins when it has replayed its last batch."""
        limit = self.run.now + QUIET_MEMBERS
        while True:
            self._restart_all()
            expected = list(filter(_may_have_joined, self.queries))
            sure = [each for each in expected if not self.truth.membership.waits_for_join(each)]
            found = list(self.truth.membership.members().values())
            missing = [each for each in sure if not _is_among(each, found)]
            if not missing and len(sure) <= len(found) <= len(expected):
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


def _quick_trigger(query: Query) -> float:
    if "maxOffsetsPerTrigger" in query.options:
        return 0.1
    return 1.0


def _may_have_joined(query: Query) -> bool:
    if "assign" in query.options:
        return False
    return query.life is None or not query.life.replaying


def _is_among(query: Query, members: list[str]) -> bool:
    return any(query.client in name for name in members)


QUIET_MEMBERS = 90.0
"""Seconds within which the group forgets the members of killed queries."""


def run(
    seed: int,
    protocol: str,
    *,
    kept: Mapping[str, Any] | None = None,
    aim: Mapping[str, float | None] | None = None,
    verbose: bool = False,
) -> Result:
    """Runs one seed, or what is kept of its draws; some are what ``aim`` says. The modules must be substituted."""
    chance = Chance(seed, kept, aim)
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
        if protocol == READS:
            scheduler.run(lambda: Reads(scheduler, chance, story.told).conduct())
        else:
            scheduler.run(lambda: Scenario(scheduler, chance, protocol, story).conduct())
    except Exception as error:
        failure = error
    finally:
        logger.removeHandler(story)
        logger.setLevel(level)
    return Result(seed, protocol, failure, story.lines, chance.kept, scheduler.steps, scheduler.now)
