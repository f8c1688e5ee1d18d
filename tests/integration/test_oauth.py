"""Tokens of a real OAuth server, whose signatures a real broker checks: which clients are accepted, and queries
whose tokens end, whose server is unavailable, or both."""

from __future__ import annotations

import base64
import os
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from tests.certificates import Authority
from tests.integration import secured
from tests.integration.oauth_server import AUDIENCE, CLIENT, CLIENT_SECRET, ISSUER, OAuthServer
from tests.integration.query_process import PlainQuery, QueryProcess, Run, source_options
from tests.integration.standing import caught_up, places_in

GATEWAY_KEY, WRONG = "k3y-of-the-gateway", "wr0ng/s3cret+="
LONG = secured.LONG
SHORT_LIFETIME = 10
PARTITIONS = 2
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_LISTENER = "listener.name.sasl_plaintext"


@dataclass(frozen=True)
class Guarded:
    """A Kafka whose listener SASL_PLAINTEXT lets in who has a token of the server; ``authority`` signed its https."""

    kafka: EmbeddedKafka
    server: OAuthServer
    authority: Authority

    def options(self, **more: str) -> dict[str, str]:
        """Options of a client that is accepted, without a login. Names have ``_`` instead of points."""
        found = {
            "bootstrap.servers": self.kafka.address("SASL_PLAINTEXT"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": self.server.token_url,
            **{name.replace("_", "."): text for name, text in more.items()},
        }
        return {f"kafka.{name}": text for name, text in found.items()}

    def login(self, secret: str = CLIENT_SECRET, client: str = CLIENT, **more: str) -> dict[str, str]:
        """Options of a client that is accepted."""
        names = {
            "sasl_oauthbearer_client_credentials_client_id": client,
            "sasl_oauthbearer_client_credentials_client_secret": secret,
        }
        return self.options(**names, **more)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    server = OAuthServer(authority.issue("127.0.0.1", file="server.pem"))
    server.start()
    name = f"{_LISTENER}.oauthbearer.sasl"
    config = {
        f"{_LISTENER}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{name}.jaas.config": f"{MODULE};",
        f"{name}.server.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerValidatorCallbackHandler",
        # By default brokers of Kafka 4.1 use the validator of clients, which checks neither signature nor audience.
        "sasl.oauthbearer.jwt.validator.class": "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator",
        "sasl.oauthbearer.jwks.endpoint.url": server.jwks_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }
    # Kafka 4 asks only endpoints that this property allows.
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={server.jwks_url}"
    with (
        mock.patch.dict(os.environ, JAVA_TOOL_OPTIONS=allowed),
        EmbeddedKafka(config=config, listeners=("SASL_PLAINTEXT",)) as kafka,
    ):
        yield Guarded(kafka, server, authority)
    server.stop()


@pytest.fixture
def server(guarded: Guarded) -> Iterator[OAuthServer]:
    """The server, which is as before after the test."""
    yield guarded.server
    guarded.server.lifetime, guarded.server.audience = 300, AUDIENCE
    guarded.server.use_published_key()


def connected(options: dict[str, str], deadline: float = LONG) -> Cluster:
    """A cluster that the broker has answered."""
    # Each test has its own token: the backoff is a part of a client's settings.
    own = {"kafka.sasl.login.retry.backoff.max.ms": str(10_000 + time.monotonic_ns() % 10**6)}
    return secured.connected(options | own, deadline)


def in_java(on: Guarded) -> dict[str, str]:
    """The options as a job in Java has them."""
    line = (
        f'{MODULE} clientId="{CLIENT}" clientSecret="{CLIENT_SECRET}" scope="kafka:read" extension_logicalCluster="lkc"'
        f' ssl.truststore.type="PEM" ssl.truststore.location="{on.authority.file}";'
    )
    return on.options(
        sasl_jaas_config=line,
        sasl_login_callback_handler_class=HANDLER,
        sasl_oauthbearer_token_endpoint_url=on.server.https_token_url,
    )


@pytest.mark.core
@pytest.mark.parametrize(
    "options",
    [
        lambda on: on.login(),
        lambda on: on.login(sasl_oauthbearer_scope="kafka:read kafka:write"),
        lambda on: on.login(sasl_jaas_config=f'{MODULE} clientId="old" extension_identityPoolId="pool-1";'),
        in_java,
    ],
    ids=["two options", "a scope", "an option before a JAAS config", "a JAAS config of Java and https"],
)
def test_a_client_with_a_token_is_accepted(guarded: Guarded, options: Callable[[Guarded], dict[str, str]]) -> None:
    with closing(connected(options(guarded))) as cluster:
        assert cluster.connection(1, Deadline.after(LONG)).is_reusable()


def other_audience(server: OAuthServer) -> None:
    server.audience = "billing"


@pytest.mark.parametrize("change", [other_audience, OAuthServer.use_unpublished_key])
def test_a_token_for_another_audience_or_with_another_key_is_rejected_by_the_broker(
    guarded: Guarded, server: OAuthServer, change: Callable[[OAuthServer], None]
) -> None:
    change(server)
    with pytest.raises(AuthenticationFailed, match=r"OAUTHBEARER.*issuer, audience and scope.*expected\.audience"):
        connected(guarded.login())


def test_queries_with_a_client_secret_show_neither_it_nor_a_token(
    guarded: Guarded, unique: Callable[[str], str], group: str, tmp_path: Path
) -> None:
    topic = guarded.kafka.create_topic(unique("topic"), partitions=PARTITIONS)
    guarded.kafka.produce(topic, [f"v{number}" for number in range(100)])
    common = {"subscribe": topic, "startingOffsets": "earliest"}
    url = {"kafka.sasl.oauthbearer.token.endpoint.url": f"{guarded.server.token_url}?subscription-key={GATEWAY_KEY}"}
    queries = {
        "option": common | guarded.login() | url | {"kafka.group.id": f"{group}-option"},
        "line": common | in_java(guarded) | {"kafka.group.id": f"{group}-line"},
        "bad": common | guarded.login(secret=WRONG) | url | {"kafka.group.id": f"{group}-bad"},
    }
    token = secured.unsigned_token()
    wrong = [
        queries["line"] | {"kafka.sasl.jaas.config": f'{MODULE} clientID="{CLIENT}" clientSecret="{WRONG}";'},
        queries["bad"] | {"kafka.sasl.oauthbearer.token.endpoint.url": f"https://{CLIENT}:{WRONG}@127.0.0.1/t"},
        queries["bad"] | {"kafka.sasl.oauthbearer.scope": " ", "kafka.client.secret": WRONG},
        guarded.options() | common | {"kafka.group.id": group, "kafka.sasl.oauthbearer.token.provider": token},
    ]
    console, everything = secured.run_secured(tmp_path, queries, wrong)
    for name in ("option", "line"):
        rows = [line for file in tmp_path.glob(f"{name}/*.json") for line in file.read_text().splitlines()]
        assert len(rows) == 100
        assert sum(guarded.kafka.committed(f"{group}-{name}", topic).values()) == 100
    assert "bad failed:" in console
    assert "/token answered HTTP status 401 (invalid_client" in console
    assert "issued a token" in console
    assert console.count("refused:") == len(wrong)
    basic = [base64.b64encode(f"{CLIENT}:{secret}".encode()).decode() for secret in (CLIENT_SECRET, WRONG)]
    forms = [*basic, CLIENT_SECRET, WRONG, *map(urllib.parse.quote_plus, (CLIENT_SECRET, WRONG)), GATEWAY_KEY, "eyJ"]
    for secret in forms:
        assert secret not in everything


StartQuery = Callable[..., tuple[Run, str]]


def produce_for(guarded: Guarded, topic: str, seconds: float, running: Callable[[], bool]) -> None:
    """Writes to each partition, up to ten times a second; fails when the query ends."""
    end, interval = time.monotonic() + seconds, max(0.1, seconds / 400)
    while time.monotonic() < end:
        assert running()
        for partition in range(PARTITIONS):
            guarded.kafka.produce(topic, ["value"], partition=partition)
        time.sleep(interval)


def assert_read_once(guarded: Guarded, query: Run, topic: str, group: str) -> None:
    """Waits until the query has read and committed everything, and checks that it read nothing twice."""
    query.until(lambda: caught_up(guarded.kafka, topic, group), what="the query to catch up")
    assert sorted(query.places()) == sorted(places_in(guarded.kafka, topic))
    assert all(len(query.attempts(batch)) == 1 for batch in query.batches())


def member_ids(guarded: Guarded, group: str) -> list[str]:
    """The ids of the group's members. A member whose session ended has another id when it joins again."""
    found = [each.consumer_id for each in guarded.kafka.members(group)]
    assert len(found) == 1
    return found


@pytest.fixture
def start_query(guarded: Guarded, unique: Callable[[str], str], group: str, tmp_path: Path) -> Iterator[StartQuery]:
    """Starts a query of a new topic, with Spark or without, and waits until it has read from each partition."""
    made: list[Run] = []

    def begin(spark: bool = False) -> tuple[Run, str]:
        topic = guarded.kafka.create_topic(unique("topic"), partitions=PARTITIONS)
        produce_for(guarded, topic, 0.1, lambda: True)
        options, work = source_options(guarded.kafka, topic, group, **guarded.login()), tmp_path / "run"
        query = QueryProcess(work, options) if spark else PlainQuery(work, work / "checkpoint", options)
        made.append(query)
        query.until(lambda: caught_up(guarded.kafka, topic, group), what="the first batch")
        return query, topic

    yield begin
    for each in made:
        each.kill()


@pytest.mark.parametrize(("with_spark", "seconds"), [(False, 12.0), pytest.param(True, 600.0, marks=pytest.mark.slow)])
def test_a_query_notices_nothing_of_tokens_that_end_every_10_seconds(
    guarded: Guarded, server: OAuthServer, group: str, start_query: StartQuery, with_spark: bool, seconds: float
) -> None:
    server.lifetime = SHORT_LIFETIME
    query, topic = start_query(spark=with_spark)
    joined, before = member_ids(guarded, group), server.tokens
    produce_for(guarded, topic, seconds, query.running)
    assert_read_once(guarded, query, topic, group)
    assert member_ids(guarded, group) == joined
    # The stream runner asks about every 8 s. The Python worker does so too if no newer token came with a task in time.
    issued = server.tokens - before
    print(f"{issued} tokens in {seconds:.0f} s, {len(query.batches())} batches")
    assert seconds // SHORT_LIFETIME <= issued <= 2 * seconds / 8 + 3
    log = query.log()
    for sign in ("requests for a new token failed", "brokers reject settings", "eyJ", CLIENT_SECRET):
        assert sign not in log


@pytest.mark.parametrize(
    ("lifetime", "seconds"),
    [
        pytest.param(300, 2.0, id="a token that outlives it"),
        pytest.param(SHORT_LIFETIME, 12.0, id="tokens that end"),
        pytest.param(300, 120.0, id="a token that outlives two minutes", marks=pytest.mark.slow),
        pytest.param(SHORT_LIFETIME, 120.0, id="tokens that end for two minutes", marks=pytest.mark.slow),
    ],
)
def test_an_outage_of_the_token_service_does_not_end_a_query(
    guarded: Guarded, server: OAuthServer, group: str, start_query: StartQuery, lifetime: int, seconds: float
) -> None:
    server.lifetime = lifetime
    query, topic = start_query()
    joined = member_ids(guarded, group)
    server.stop()
    try:
        produce_for(guarded, topic, seconds, query.running)
        if lifetime > seconds:
            assert_read_once(guarded, query, topic, group)
            assert member_ids(guarded, group) == joined
    finally:
        server.start()
    took = query.until(lambda: caught_up(guarded.kafka, topic, group), what="the query to catch up")
    assert_read_once(guarded, query, topic, group)
    same = member_ids(guarded, group) == joined
    print(f"caught up {took:.1f} s after an outage of {seconds:.0f} s; the same member: {same}")
