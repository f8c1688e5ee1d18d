"""TLS, SASL and rights against a real Kafka: which clients are accepted, and the errors of the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest

from spark_group_source.__main__ import main
from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerError,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupError,
    GroupSourceError,
    ProtocolError,
    TopicError,
)
from spark_group_source.fetch.reader import read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.offsets import BatchOffset, OffsetRange
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.driver import Driver
from spark_group_source.spark.schema import source_schema, to_arrow_schema
from spark_group_source.wire.connection import Connection
from tests.certificates import Authority, parts
from tests.drivers import drivers
from tests.integration.query_process import eventually
from tests.integration.secured import ALICE, BOB, KEY_PASSWORD, LONG, PASSWORD, SESSION_MS, Secured, connected

SHORT = 3.0
"""For what is tried again until the deadline."""
LOGIN = f"org.apache.kafka.common.security.plain.PlainLoginModule required username={ALICE} password="
TOKENS = "tests.integration.secured:"


def ask(connection: Connection) -> Any:
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    return connection.call(request, Deadline.after(LONG))


def in_text(secured: Secured) -> dict[str, str]:
    """Options of mutual TLS without files."""
    key, chain = parts(secured.encrypted_client)
    given = {"ssl.truststore.certificates": secured.authority.file.read_text(), "ssl.keystore.key": key}
    given |= {"ssl.keystore.certificate.chain": chain, "ssl.key.password": KEY_PASSWORD}
    found = secured.options("SSL", **given)
    del found["kafka.ssl.truststore.location"]
    return found


@pytest.mark.parametrize(
    "options",
    [
        lambda on: on.options("SSL", ssl_keystore_location=str(on.client)),
        in_text,
        lambda on: on.options("SSL", ssl_keystore_location=str(on.client), ssl_enabled_protocols="TLSv1.2"),
        lambda on: on.scram(),
        lambda on: on.scram(BOB),
        lambda on: on.scram(sasl_mechanism="SCRAM-SHA-256", ssl_enabled_protocols="TLSv1.3"),
        lambda on: on.scram(sasl_mechanism="PLAIN"),
        lambda on: on.options("SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=LOGIN + quoted(PASSWORD)),
        lambda on: on.options("SASL_PLAINTEXT", **bearer("unsigned_token")),
        lambda on: on.options("SASL_PLAINTEXT", **bearer("unsigned_token_with_extensions")),
        lambda on: on.scram(ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
    ],
    ids=[
        *("mutual TLS", "mutual TLS from texts", "mutual TLS 1.2", "SCRAM-SHA-512", "a name that SCRAM escapes"),
        *("SCRAM-SHA-256", "PLAIN", "a JAAS config", "a token", "a token with extensions", "a cipher suite"),
    ],
)
def test_a_client_with_valid_credentials_is_accepted(
    secured: Secured, options: Callable[[Secured], dict[str, str]]
) -> None:
    with closing(connected(options(secured))) as cluster:
        assert cluster.connection(1, Deadline.after(LONG)).is_reusable()


def quoted(text: str) -> str:
    inside = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inside}";'


def bearer(function: str) -> dict[str, str]:
    return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_provider": TOKENS + function}


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        (lambda on: on.scram(password="s3cret"), AuthenticationFailed, "invalid credentials.*kafka.sasl.password"),
        (lambda on: on.scram("nobody"), AuthenticationFailed, "rejected .* credentials.*that the user exists"),
        (lambda on: on.scram(sasl_mechanism="PLAIN", password="s3cret"), AuthenticationFailed, "Invalid username"),
        (
            lambda on: on.options("SASL_PLAINTEXT", **bearer("expired_token")),
            AuthenticationFailed,
            "invalid_token|OAUTHBEARER.*token.provider",
        ),
        (
            lambda on: on.options(
                "SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", sasl_username=ALICE, sasl_password=PASSWORD
            ),
            AuthenticationFailed,
            "does not enable 'SCRAM-SHA-512' on this listener.*PLAIN.*'kafka.sasl.mechanism'",
        ),
        (
            lambda on: on.options("SSL"),
            AuthenticationFailed,
            "rejected this client's certificate.*ssl.keystore.location",
        ),
        (
            lambda on: on.scram(bootstrap_servers=on.kafka.address("PLAINTEXT")),
            BrokerUnavailable,
            "EOF.*If the listener does not use TLS.*kafka.security.protocol",
        ),
        (
            lambda on: on.options("PLAINTEXT", bootstrap_servers=on.kafka.address("SASL_SSL")),
            ProtocolError,
            "If the listener uses TLS, set 'kafka.security.protocol'",
        ),
        (
            lambda on: on.options("PLAINTEXT", bootstrap_servers=on.kafka.address("SASL_PLAINTEXT")),
            BrokerUnavailable,
            "closed.*If the listener requires SASL.*kafka.security.protocol",
        ),
        (
            lambda on: on.options(
                "SASL_PLAINTEXT",
                bootstrap_servers=on.kafka.address("PLAINTEXT"),
                sasl_mechanism="PLAIN",
                sasl_username=ALICE,
                sasl_password=PASSWORD,
            ),
            AuthenticationFailed,
            "does not use SASL on this listener",
        ),
    ],
    ids=[
        *("password", "user", "PLAIN password", "token", "mechanism", "no client certificate", "no TLS there"),
        *("TLS there", "SASL there", "no SASL there"),
    ],
)
def test_the_error_of_a_rejected_client_names_the_option_to_change(
    secured: Secured, options: Callable[[Secured], dict[str, str]], kind: type[GroupSourceError], says: str
) -> None:
    with pytest.raises(kind, match=says) as refused:
        connected(options(secured), LONG if kind is AuthenticationFailed else SHORT)
    assert "s3cret" not in str(refused.value)
    assert PASSWORD not in str(refused.value)


def test_a_broker_certificate_of_an_unknown_authority_is_rejected(secured: Secured, tmp_path: Any) -> None:
    other = str(Authority(tmp_path, "other").file)
    with pytest.raises(
        AuthenticationFailed, match=r"Broker .* has a certificate that .* rejected: .*issuer.*ssl\.truststore"
    ):
        connected(secured.scram(ssl_truststore_location=other))


def test_a_broker_certificate_for_another_host_is_accepted_only_without_the_check(secured: Secured) -> None:
    port = secured.kafka.address("SASL_SSL").rpartition(":")[2]
    elsewhere = secured.scram(bootstrap_servers=f"localhost:{port}")
    with pytest.raises(AuthenticationFailed, match=r"localhost.*ssl\.endpoint\.identification\.algorithm"):
        connected(elsewhere)
    connected(elsewhere | {"kafka.ssl.endpoint.identification.algorithm": ""}).close()


def test_new_connections_use_a_renewed_certificate(secured: Secured, tmp_path: Any) -> None:
    file = tmp_path / "client.pem"
    file.write_bytes(Authority(tmp_path, "other").issue("client", file="other-client.pem").read_bytes())
    options = secured.options("SSL", ssl_keystore_location=str(file))
    with pytest.raises(AuthenticationFailed, match="rejected this client's certificate"):
        connected(options)
    file.write_bytes(secured.client.read_bytes())
    connected(options).close()


@pytest.mark.parametrize("how", ["password", "token"])
def test_a_connection_is_replaced_before_the_broker_ends_its_session(secured: Secured, how: str) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": ALICE, "sasl_password": PASSWORD}
    options = secured.options("SASL_PLAINTEXT", **(login if how == "password" else bearer("short_token")))
    used = []
    with closing(connected(options)) as cluster:
        until = Deadline.after(SESSION_MS / 1000 * 2.5)
        while not until.expired():
            used.append(cluster.connection(1, Deadline.after(LONG), "heartbeats"))
            ask(used[-1])  # the broker would end a connection of an old session here
            time.sleep(0.05)
    assert 3 <= len(set(map(id, used))) <= 6


@pytest.fixture
def topic(secured: Secured, unique: Callable[[str], str]) -> str:
    """A topic of two partitions with a record in each."""
    name = secured.kafka.create_topic(unique("topic"), partitions=2)
    for number in range(2):
        secured.kafka.produce(name, ["v"], partition=number)
    return name


Start = Callable[..., Driver]
ONLY_CLASSIC = {"kafka.heartbeat.interval.ms": "200"}
"""Options that the brokers set with the other group protocol."""


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    """The group protocol of the queries."""
    return str(request.param)


@pytest.fixture
def start(topic: str, group: str, protocol: str) -> Iterator[Start]:
    """Starts a query with the security options that are given."""
    base = {
        "kafka.group.id": group,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.group.protocol": protocol,
    }
    with drivers(base | (ONLY_CLASSIC if protocol == "classic" else {})) as begin:
        yield lambda security, **more: begin(**security, **more)


def test_a_member_stays_in_its_group_when_its_sasl_sessions_end(
    secured: Secured, topic: str, group: str, start: Start
) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": ALICE, "sasl_password": PASSWORD}
    query = start(secured.options("SASL_PLAINTEXT", **login))
    generation = query._member.snapshot().generation
    batch = query.plan_batch(BatchOffset(), None)
    time.sleep(SESSION_MS / 1000 * 2)
    query.complete(batch)
    eventually(lambda: secured.kafka.committed(group, topic) == {(topic, 0): 1, (topic, 1): 1}, LONG)
    assert query._member.snapshot().generation == generation
    assert (query._assigned_partitions.counters.rebalances, query._assigned_partitions.counters.lost) == (1, 0)


@pytest.mark.parametrize(
    ("granted", "says"),
    [
        ([("READ", "TOPIC")], "group '{group}'.*30.*Grant the principal READ on the group"),
        ([("READ", "TOPIC"), ("DESCRIBE", "GROUP")], "group '{group}'.*30 .*Grant the principal READ on the group"),
        ([("READ", "GROUP")], "Topic '{topic}'.*29 .*Grant the principal DESCRIBE and READ"),
        ([("READ", "GROUP"), ("DESCRIBE", "TOPIC")], "Topic '{topic}'.*29 .*Grant the principal DESCRIBE and READ"),
    ],
    ids=["nothing of the group", "DESCRIBE of the group", "nothing of the topic", "DESCRIBE of the topic"],
)
def test_the_error_of_a_missing_permission_names_it_at_once(
    secured: Secured,
    topic: str,
    group: str,
    start: Start,
    granted: list[tuple[str, str]],
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for operation, kind in granted:
        secured.grant(operation, kind, {"TOPIC": topic, "GROUP": group}[kind])
    began = time.monotonic()
    with pytest.raises(BrokerError, match=says.format(topic=topic, group=group)) as refused:  # noqa: PT012
        query = start(secured.scram(BOB))
        while time.monotonic() - began < LONG:
            query.plan_batch(BatchOffset(), None)
            time.sleep(0.01)
    assert isinstance(refused.value, GroupError | TopicError)
    assert "tried again" not in caplog.text
    assert "no successful heartbeat" not in caplog.text


def test_read_permission_on_topic_and_group_is_enough(secured: Secured, topic: str, group: str, start: Start) -> None:
    secured.grant("READ", "TOPIC", topic)
    secured.grant("READ", "GROUP", group)
    query = start(secured.scram(BOB))
    query.complete(query.plan_batch(BatchOffset(), None))
    eventually(lambda: secured.kafka.committed(group, topic) == {(topic, 0): 1, (topic, 1): 1}, LONG)
    query.close()
    assert group not in secured.kafka.active_groups()


def test_a_group_with_a_topic_that_the_principal_may_not_describe_hides_its_members_and_nothing_else(
    secured: Secured, topic: str, group: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    hidden = secured.kafka.create_topic(unique("hidden"), partitions=1)
    secured.grant("READ", "TOPIC", topic)
    secured.grant("READ", "GROUP", group)
    bob = {**secured.scram(BOB), "kafka.group.id": group}
    base = {"startingOffsets": "earliest", "kafka.group.protocol": "consumer", "kafka.group.id": group}
    with (
        drivers(base) as begin,
        drivers(bob) as begin_assigned,
        closing(GroupLagClient({**bob, "subscribe": topic})) as probe,
    ):
        begin(**secured.scram(), subscribe=hidden)
        query = begin(**secured.scram(BOB), subscribe=topic)
        batch = query.plan_batch(BatchOffset(), None)
        assert sorted(each.partition for each in batch.reads()) == [0, 1]
        query.complete(batch)
        described = probe.describe()
        assert (described.protocol, described.members, described.members_hidden) == ("consumer", (), True)
        eventually(lambda: sum(each.lag for each in probe.sample().partitions()) == 0)
        check_report(bob, tmp_path / "report.html")
        with pytest.raises(GroupError, match=r"has members, whose topics this principal may not describe"):
            begin_assigned(assign=f'{{"{topic}": [0]}}')
        secured.grant("DESCRIBE", "TOPIC", hidden)
        assert len(probe.describe().members) == 2


def check_report(options: dict[str, str], page: Path) -> None:
    """The report of a group with hidden members has all the rest, and says what is missing."""
    arguments = ["--bootstrap-servers", options["kafka.bootstrap.servers"], "--group", options["kafka.group.id"]]
    arguments += ["--output", str(page), "--seconds", "0.1"]
    for name, value in options.items():
        arguments += ["--option", f"{name}={value}"]
    assert main(["report", *arguments]) == 0
    text = page.read_text()
    assert "Unknown, protocol consumer, assignor -, 0 member(s) shown" in text
    assert "grant this principal DESCRIBE on all topics that the group reads" in text
    assert "lag 0 in 2 partition(s)" in text


def test_a_task_without_permission_on_a_topic_waits_for_it_until_its_timeout(secured: Secured, topic: str) -> None:
    secured.grant("DESCRIBE", "TOPIC", topic)
    parsed = parse_options({"kafka.group.id": "g", "subscribe": topic, **secured.scram(BOB)})
    ranges = (OffsetRange(topic, 0, 0, 1),)
    columns = to_arrow_schema(source_schema(False))
    with pytest.raises(DeadlineExceeded, match=f"{topic}.*29 .*Grant the principal READ on the topic"):
        list(read(FetchTask(ranges, parsed.wire, columns, FetchSettings(poll_timeout=SHORT))))
    task = FetchTask(ranges, parsed.wire, columns, FetchSettings(poll_timeout=LONG))
    grant = threading.Timer(1.0, secured.grant, ("READ", "TOPIC", topic))
    grant.start()
    assert sum(batch.num_rows for batch in read(task)) == 1
    grant.join()


class Running:
    """A query whose batches are completed as soon as they are planned; ``read`` are their ranges."""

    def __init__(self, driver: Driver) -> None:
        self.read: list[OffsetRange] = []
        self._driver = driver
        self._end = BatchOffset()

    def until(self, condition: Callable[[], object]) -> None:
        """Runs batches until the condition holds."""

        def holds() -> object:
            self._run_batch()
            return condition()

        eventually(holds, LONG)

    def _run_batch(self) -> None:
        planned = self._driver.plan_batch(self._end, None)
        if planned is not self._end:
            self.read += planned.reads()
            self._driver.complete(planned)
            self._end = planned


@pytest.mark.parametrize("kind", ["TOPIC", "GROUP"])
def test_a_query_survives_that_read_is_taken_and_given_back(
    secured: Secured, topic: str, group: str, start: Start, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    secured.grant("READ", "TOPIC", topic)
    secured.grant("READ", "GROUP", group)
    query = Running(start(secured.scram(BOB)))
    query.until(lambda: secured.kafka.committed(group, topic) == {(topic, 0): 1, (topic, 1): 1})
    name = {"TOPIC": topic, "GROUP": group}[kind]
    secured.revoke("READ", kind, name)
    secured.kafka.produce(topic, ["more"], partition=0)
    warning = f"User:{BOB} no longer has READ on {kind.lower()} '{name}'; the query fails in 300 s"
    query.until(lambda: warning in caplog.text)
    secured.grant("READ", kind, name)
    query.until(lambda: secured.kafka.committed(group, topic) == {(topic, 0): 2, (topic, 1): 1})
    assert caplog.text.count("no longer has READ") == 1


def test_a_new_topic_that_may_not_be_read_is_left_out_of_a_pattern_until_it_may_be(
    secured: Secured, topic: str, group: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    secured.grant("READ", "TOPIC", topic)
    secured.grant("READ", "GROUP", group)
    base = {"kafka.group.id": group, "startingOffsets": "earliest", "kafka.group.protocol": protocol}
    pattern = {"subscribePattern": f"{topic}.*", "kafka.metadata.max.age.ms": "500"}
    with drivers(base | pattern) as begin:
        query = Running(begin(**secured.scram(BOB)))
        new = secured.kafka.create_topic(f"{topic}-new", partitions=1)
        secured.kafka.produce(new, ["a", "b"], partition=0)
        secured.grant("DESCRIBE", "TOPIC", new)
        left_out = f"User:{BOB} has no READ on topic '{new}'; the query continues without this topic"
        query.until(lambda: left_out in caplog.text)
        secured.kafka.produce(topic, ["more"], partition=0)
        query.until(lambda: secured.kafka.committed(group, topic).get((topic, 0)) == 2)
        assert {each.topic for each in query.read} == {topic}
        secured.grant("READ", "TOPIC", new)
        query.until(lambda: secured.kafka.committed(group, new) == {(new, 0): 2})
        assert [(each.start, each.end) for each in query.read if each.topic == new] == [(0, 2)]
