"""What all tests share: the embedded Kafka, and names that no other test uses."""

from __future__ import annotations

import logging
import math
import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_group_source.auth.oauth import client_tokens
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.ivy import KAFKA_VERSION, kafka_libs

# Where the package is installed, pytest has loaded it already.
pytest_plugins = ["spark_group_source.testing.plugin"]
collect_ignore = ["example_project"]  # a project of its own, run by integration/test_example_project.py

KAFKA = os.environ.get("KAFKA_VERSION", KAFKA_VERSION)
"""The version of the embedded Kafka."""
WITHOUT_KIP_848 = KAFKA < "4"
SINCE = {"KIP-848": "4.0", "topic ids": "2.8", "leader epochs": "2.4", "static members": "2.3"}
"""The version of Kafka that brought what a test on a real broker needs."""
needs_kip_848 = pytest.mark.needs("KIP-848")

TESTS = Path(__file__).parent
TRAPS = ("but a revocation waits for at most",)
"""Parts of warnings about mistakes of users, which no query in order may log."""
BROKER_FIXTURES = {"embedded_kafka", "kafka_spark", "secured"}
LONGEST_FIRST = ("integration", "contract")
BUDGET_S = 30.0
"""Seconds of a test, with what it sets up. Longer ones are marked as slow, or share what they set up with others."""
SKIPS = (
    *("Kafka 4", "the fake ", "PySpark 4.", " exists for Spark ", "cannot be fetched from Maven Central"),
    *("on this machine", "only Linux", "the system has no clock", "Python 3.10 leaves"),
)
"""Parts of the reasons for which CI may skip a test (ONLY_KNOWN_SKIPS): it must not skip one unnoticed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the integration tests, and keeps the unit tests free of brokers. Short tests fill the end of a run."""
    items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] not in LONGEST_FIRST)
    for item in items:
        part = item.path.relative_to(TESTS).parts[0]
        if part == "integration":
            item.add_marker(pytest.mark.integration)
            # pyspark leaves the sockets of collect() and of its gateway to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        used = BROKER_FIXTURES.intersection(getattr(item, "fixturenames", ()))
        if part == "unit" and used:
            raise pytest.UsageError(f"{item.nodeid} is a unit test and uses {', '.join(sorted(used))}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests on a real broker that lacks what they need."""
    if item.get_closest_marker("integration"):
        chosen = getattr(item, "callspec", SimpleNamespace(params={})).params
        needed = [mark.args[0] for mark in item.iter_markers("needs")]
        for each in needed + ["KIP-848"] * (chosen.get("protocol") == "consumer"):
            if SINCE[each] > KAFKA:
                pytest.skip(f"Kafka {SINCE[each]} has {each}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a test with real or fake queries if one warns of a trap, unless the test's marker ``trap`` expects it."""
    report = yield
    if call.when == "call" and report.passed and "unit" not in item.path.relative_to(TESTS).parts:
        work = getattr(item, "funcargs", {}).get("tmp_path")
        logs = [log.read_text(errors="replace") for log in (work.rglob("log") if work else ()) if log.is_file()]
        lines = "\n".join([*logs, *(text for name, text in report.sections if name.endswith("call"))]).splitlines()
        warnings = [line for line in lines if any(trap in line for trap in TRAPS)]
        if bool(warnings) != bool(item.get_closest_marker("trap")):
            report.outcome, report.longrepr = "failed", f"warnings of traps: {warnings}"
    if (
        report.skipped
        and os.environ.get("ONLY_KNOWN_SKIPS")
        and not any(each in str(report.longrepr) for each in SKIPS)
    ):
        report.outcome = "failed"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Keeps the seconds of each test in build/durations.tsv, and lists those over the budget, but slow ones."""
    seconds: dict[str, float] = defaultdict(float)
    slow = set()
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid] += report.duration
            slow |= {report.nodeid} if "slow" in report.keywords else set()
    longest = sorted(seconds.items(), key=lambda each: -each[1])
    kept = config.rootpath / "build" / "durations.tsv"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("".join(f"{took:.2f}\t{name}\n" for name, took in longest))
    for name, took in longest:
        if took > BUDGET_S and name not in slow:
            terminalreporter.write_line(f"over the {BUDGET_S:.0f} s that a test may take: {took:.0f} s {name}")


@pytest.fixture(autouse=True)
def _restore_log_level() -> Iterator[None]:
    """Restores the level of the package's logger, which code from the docs sets: the log of other tests would have more
    lines than they expect."""
    package = logging.getLogger("spark_group_source")
    level = package.level
    yield
    package.setLevel(level)


@pytest.fixture(autouse=True)
def _end_tokens() -> Iterator[None]:
    """Ends the threads that renew tokens of the test: they would log, and resolve hosts, in other tests."""
    yield
    for token in client_tokens._caches.values():
        with token._condition:
            token._used_at = -math.inf
            token._condition.notify_all()
    client_tokens._caches.clear()


@pytest.fixture(scope="session")
def embedded_kafka_arguments() -> dict[str, str]:
    """The version is KAFKA_VERSION where the environment has that."""
    return {"version": KAFKA}


class OtherKafka(EmbeddedKafka):
    """A cluster that runs already, at KAFKA_SERVERS, to try brokers that are not Apache's."""

    bootstrap_servers = os.environ.get("KAFKA_SERVERS", "")

    def open(self) -> None:
        self.libs = kafka_libs(self._version)


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    """A Kafka for all tests of the session. A test that stops Kafka takes one of its own; one may pause it."""
    if not OtherKafka.bootstrap_servers:
        yield request.getfixturevalue("embedded_kafka")
        return
    with OtherKafka(version=KAFKA) as other:
        yield other


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Turns a prefix into a name that no other test uses."""
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def group(unique: Callable[[str], str]) -> str:
    """A group id of this test's own; ``unique("group")`` gives further ones."""
    return unique("group")


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> Callable[..., str]:
    """Creates topics of this test's own: ``topic(partitions=4)`` returns the name."""

    def create(partitions: int = 1, prefix: str = "topic", config: dict[str, str] | None = None) -> str:
        return kafka.create_topic(unique(prefix), partitions, config)

    return create
