"""GSSAPI against a real Kafka and a real KDC: which clients are accepted, and a KDC that is unavailable for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded
from spark_group_source.options.parsing import parse_options
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.ports import HOST
from spark_group_source.wire.connection import Connection
from tests.integration.kerberos import REALM, Realm, missing
from tests.integration.query_process import QueryProcess, eventually
from tests.integration.standing import caught_up, fill

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"no {missing()} on this machine")

SERVICE = "broker-service"
"""The brokers' service; Kafka's documentation says "kafka", and nothing may take that for granted."""
LONG = 90.0
SHORT = 3.0


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    found = Realm(tmp_path_factory.mktemp("realm"))
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def kerberized(realm: Realm) -> Iterator[EmbeddedKafka]:
    """A Kafka whose SASL_PLAINTEXT takes tickets."""
    keytab = realm.principal(f"{SERVICE}/{HOST}")
    proof = f'useKeyTab=true storeKey=true keyTab="{keytab}" principal="{SERVICE}/{HOST}@{REALM}"'
    on = "listener.name.sasl_plaintext."
    config = {
        f"{on}sasl.enabled.mechanisms": "GSSAPI",
        f"{on}sasl.kerberos.service.name": SERVICE,
        f"{on}gssapi.sasl.jaas.config": f"com.sun.security.auth.module.Krb5LoginModule required {proof};",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", f"-Djava.security.krb5.conf={realm.config}")
        kafka = EmbeddedKafka(config=config, listeners=("SASL_PLAINTEXT",))
        kafka.open()
    yield kafka
    kafka.close()


@pytest.fixture(scope="module")
def keytab(realm: Realm) -> Path:
    """Alice's."""
    return realm.principal("alice")


@pytest.fixture
def alice(realm: Realm, keytab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process and those it starts are Alice's, with her keytab and no ticket yet; the file for her tickets."""
    tickets = tmp_path / "tickets"
    monkeypatch.setenv("KRB5_CONFIG", str(realm.config))
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(keytab))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tickets}")
    return tickets


def options(kafka: EmbeddedKafka, service: str = SERVICE) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": kafka.address("SASL_PLAINTEXT"),
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.kerberos.service.name": service,
    }


def connect(kafka: EmbeddedKafka, deadline: float = LONG, service: str = SERVICE) -> None:
    """Connects once; nothing is tried again."""
    parsed = parse_options({"kafka.group.id": "g", "subscribe": "t", **options(kafka, service)})
    host, port = kafka.address("SASL_PLAINTEXT").split(":")
    limit = Deadline.after(deadline)
    with closing(Connection.open(host, int(port), parsed.with_client_id("test").wire, limit)) as connection:
        assert connection.is_reusable()


@pytest.mark.usefixtures("alice")
def test_a_query_with_a_keytab_reads_and_commits(
    kerberized: EmbeddedKafka, unique: Callable[[str], str], group: str, query: Callable[..., QueryProcess]
) -> None:
    topic = kerberized.create_topic(unique("topic"), partitions=2)
    fill(kerberized, topic, 100)
    run = query(topic, options(kerberized))
    run.until(lambda: caught_up(kerberized, topic, group))
    run.stop()
    assert len(run.places()) == 200
    assert kerberized.group_state(group) == "Empty"


@pytest.mark.usefixtures("alice")
def test_the_error_of_an_unknown_kerberos_service_names_the_option(kerberized: EmbeddedKafka) -> None:
    with pytest.raises(AuthenticationFailed, match=rf"kafka/{HOST}@{REALM} not found.*kerberos\.service\.name"):
        connect(kerberized, service="kafka")


@pytest.mark.usefixtures("alice")
def test_without_ticket_and_keytab_the_error_says_where_both_were_expected(
    kerberized: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KRB5_CLIENT_KTNAME")
    with pytest.raises(AuthenticationFailed, match=r"No Kerberos credentials available.*/tickets.*klist"):
        connect(kerberized)


def test_a_client_with_a_ticket_needs_no_kdc_and_another_waits_for_it(
    kerberized: EmbeddedKafka, realm: Realm, alice: Path
) -> None:
    connect(kerberized)
    realm.stop()
    try:
        connect(kerberized)
        alice.unlink()
        with pytest.raises(BrokerUnavailable, match="Cannot contact any KDC"):
            connect(kerberized)
    finally:
        realm.start()
    connect(kerberized)


@pytest.mark.usefixtures("alice")
def test_an_expired_ticket_is_renewed_when_the_kdc_is_available_again(
    kerberized: EmbeddedKafka, realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(realm.principal("bob", "5 seconds")))
    connect(kerberized)
    realm.stop()
    refused: list[BrokerUnavailable] = []

    def has_ended() -> bool:
        try:
            connect(kerberized)
        except BrokerUnavailable as error:
            refused.append(error)
        return bool(refused)

    try:
        eventually(has_ended, what="the end of the ticket")
    finally:
        realm.start()
    assert "Ticket expired" in str(refused[0])
    connect(kerberized)


@pytest.mark.usefixtures("alice")
def test_a_kdc_that_does_not_respond_never_delays_a_client_beyond_its_deadline(
    kerberized: EmbeddedKafka, realm: Realm
) -> None:
    realm.pause()
    deadline = Deadline.after(SHORT + LONG)
    try:
        with pytest.raises(DeadlineExceeded, match="no ticket"):
            connect(kerberized, SHORT)
        assert not deadline.expired()
    finally:
        realm.resume()
    connect(kerberized)
