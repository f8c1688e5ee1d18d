"""A Kafka that accepts only clients with TLS or SASL credentials, and checks their permissions."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from spark_group_source.clock import Deadline
from spark_group_source.options.parsing import parse_options
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from tests.certificates import Authority
from tests.integration.query_process import eventually

ALICE, BOB = "alice", "bob, of =sales"
"""The first may do everything, the second what a test grants. SCRAM must escape the second name."""
PASSWORD = "p4ss\"w\\ord, it's =long;"
KEY_PASSWORD = "k3y-p4ss"
SESSION_MS = 2000
"""How long a session on SASL_PLAINTEXT lasts by password."""
_PACKAGE = "org.apache.kafka.common.security."


LONG = 90.0


def connected(options: dict[str, str], deadline: float = LONG) -> Cluster:
    """A cluster that a broker has answered."""
    parsed = parse_options({"kafka.group.id": "g", "subscribe": "t", **options})
    cluster = Cluster(parsed.with_client_id("test").wire)
    try:
        cluster.metadata([], Deadline.after(deadline))
    except BaseException:
        cluster.close()
        raise
    return cluster


@dataclass(frozen=True)
class Secured:
    """The running Kafka, the authority that signed its certificate, and files of a client's key and certificate."""

    kafka: EmbeddedKafka
    authority: Authority
    client: Path
    encrypted_client: Path

    def options(self, listener: str, **more: str) -> dict[str, str]:
        """Returns options for a listener. Names in ``more`` have ``_`` instead of points and no ``kafka.`` prefix."""
        found = {"bootstrap.servers": self.kafka.address(listener), "security.protocol": listener}
        if listener.endswith("SSL"):
            found["ssl.truststore.location"] = str(self.authority.file)
        found |= {name.replace("_", "."): value for name, value in more.items()}
        return {f"kafka.{name}": value for name, value in found.items()}

    def scram(self, user: str = ALICE, password: str = PASSWORD, **more: str) -> dict[str, str]:
        """Returns options of a user on SASL_SSL."""
        login = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": user, "sasl_password": password}
        return self.options("SASL_SSL", **{**login, **more})

    def grant(self, operation: str, kind: str, name: str) -> None:
        """Grants Bob a permission, for example ``READ`` on the ``GROUP`` of that name."""
        rule = _rule(operation, kind, name)
        with self.kafka.admin() as admin:
            assert not admin.create_acls([rule])["failed"]
            eventually(lambda: rule in admin.describe_acls(rule)[0], what="the broker to know of it")

    def revoke(self, operation: str, kind: str, name: str) -> None:
        """Takes a granted permission from Bob."""
        rule = _rule(operation, kind, name)
        with self.kafka.admin() as admin:
            admin.delete_acls([rule])
            eventually(lambda: rule not in admin.describe_acls(rule)[0], what="the broker to know of it")


def _rule(operation: str, kind: str, name: str) -> ACL:
    pattern = ResourcePattern(ResourceType[kind], name)
    return ACL(f"User:{BOB}", "*", ACLOperation[operation], ACLPermissionType.ALLOW, pattern)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Secured]:
    """Starts Kafka with certificates in ``directory``. Clients of ``PLAINTEXT`` are superusers, for its tools."""
    authority = Authority(directory)
    # Without "localhost", so that a test can use a host that the certificate does not name.
    server = authority.issue("127.0.0.1", file="server.pem")
    client = authority.issue("client", file="client.pem")
    encrypted = authority.issue("client", file="encrypted-client.pem", password=KEY_PASSWORD)
    logins = f'user_{ALICE}="{_quoted(PASSWORD)}"'
    plain = f"{_PACKAGE}plain.PlainLoginModule required {logins};"
    config = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{_PACKAGE}scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{_PACKAGE}scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": plain,
        "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": str(SESSION_MS),
        # The broker accepts unsigned tokens: for tests only.
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f"{_PACKAGE}oauthbearer.OAuthBearerLoginModule"
        ' required unsecuredLoginStringClaim_sub="broker";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ALICE}",
    }
    with EmbeddedKafka(config=config, listeners=("SSL", "SASL_SSL", "SASL_PLAINTEXT")) as kafka:
        with kafka.admin() as admin:
            # A request may contain each user only once.
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                refused = admin.alter_user_scram_credentials(scram_users(mechanism))
                assert set(refused.values()) == {None}, refused
        yield Secured(kafka, authority, client, encrypted)


def run_secured(
    work: Path,
    queries: dict[str, dict[str, str]],
    wrong: list[dict[str, str]],
    environment: dict[str, str] | None = None,
) -> tuple[str, str]:
    """Runs queries with these options, and tries the wrong ones, in ``run_secured_query.py``.

    Returns the console of all processes; and everything that can be seen: console, plans, progress, Spark's event log,
    checkpoints and rows.
    """
    settings = work / "settings.json"
    settings.write_text(json.dumps({**queries, "wrong": wrong}))
    variables = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"} | (environment or {})
    script = Path(__file__).parent / "run_secured_query.py"
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(script.parents[2]), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(script), str(work)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    settings.unlink()
    written = [each for each in work.rglob("*") if each.is_file()]
    assert any("events" in each.parts for each in written)
    console = done.stdout + done.stderr
    return console, console + "".join(each.read_text(errors="replace") for each in written)


def scram_users(mechanism: ScramMechanism) -> list[UserScramCredentialUpsertion]:
    """Returns the users for one mechanism, in the form that brokers store."""
    return [UserScramCredentialUpsertion(each, mechanism, password=PASSWORD, iterations=4096) for each in (ALICE, BOB)]


def unsigned_token(lifetime: float = 3600.0, subject: str = ALICE) -> str:
    """Returns an unsigned token of ``subject`` that is valid for ``lifetime`` seconds."""
    now = time.time()
    # Issued long ago: the broker's clock counts whole milliseconds, so a token issued now may lie in its future.
    claims = {"sub": subject, "iat": now - 7200, "exp": now + lifetime}
    parts = [json.dumps(each).encode() for each in ({"alg": "none"}, claims)]
    return ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts) + "."


def unsigned_token_with_extensions() -> tuple[str, dict[str, str]]:
    """Returns a token with the SASL extensions that some brokers require."""
    return unsigned_token(), {"logicalCluster": "lkc-1"}


def short_token() -> str:
    """Returns a token that expires soon."""
    return unsigned_token(SESSION_MS / 1000)


def expired_token() -> str:
    """Returns an expired token."""
    return unsigned_token(-3600.0)


def _quoted(text: str) -> str:
    """As it stands between double quotes in a JAAS config in a properties file, where a backslash is written twice."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
