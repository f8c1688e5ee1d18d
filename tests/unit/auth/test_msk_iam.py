"""Amazon MSK with IAM: tokens that brokers with the signer's own rules accept, and where credentials come from."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.auth import aws_signer
from spark_group_source.auth.msk_iam import MskIam
from spark_group_source.auth.msk_iam_tokens import MskIamTokens
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, GroupSourceError
from spark_group_source.offsets import BatchOffset
from tests.drivers import drivers
from tests.fake_msk import ACCESS_KEY, REGION, SECRET_KEY, FakeMsk, check_token, parameters_of, signature
from tests.unit.auth.oauth import token_service
from tests.unit.wire_options import LONG, after
from tests.waiting import eventually

SECRET_KEYS = {ACCESS_KEY: SECRET_KEY, "AKIDROLE": "r0le-secret", "AKIDNEW": "n3w-secret"}
DEFAULT, PROFILE = MskIamTokens(MskIam(REGION)), MskIamTokens(MskIam(REGION, profile="orders"))
ROLE_ARN = "arn:aws:iam::123456789012:role/orders"
ROLE = MskIamTokens(MskIam(REGION, role_arn=ROLE_ARN, role_external_id="ext"))


@pytest.fixture(autouse=True)
def keys(aws: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment has the credentials of the examples, and there are neither profiles nor metadata."""
    aws.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    aws.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    aws.setenv("AWS_EC2_METADATA_DISABLED", "true")
    aws.setenv("AWS_MAX_ATTEMPTS", "1")
    aws.setenv("NO_PROXY", "*")
    aws_signer._renewing.clear()
    aws_signer._logged.clear()
    yield
    aws_signer._renewing.clear()


class Aws:
    """AWS's Security Token Service, and the credentials of a container.

    ``keys`` are the access key and the secret key that it gives out, for ``lifetime`` seconds. ``error`` is a status
    and an error code to answer with; ``hold`` lets answers wait. Roles are given only to ``caller``, an access key, if
    it is set.
    """

    def __init__(self, http: token_service.TokenService) -> None:
        self.keys, self.lifetime = ("AKIDROLE", "r0le-secret"), 3600.0
        self.error: tuple[int, str] | None = None
        self.hold: threading.Event | None = None
        self.caller = ""
        self.requests = http.requests
        http.answer, http.headers = self._answer, {"Connection": "close"}

    def _answer(self) -> tuple[int, Any]:
        request = self.requests[-1]
        action = request.form.get("Action", [""])[0]
        if self.hold is not None:
            self.hold.wait(LONG)
        if action == "GetCallerIdentity":
            return 200, answer_of(action, "<Arn>arn:aws:sts::1:assumed-role/orders/me</Arn>")
        if action and self.caller not in request.headers["Authorization"]:
            return 403, error_of("ExpiredToken")
        if self.error is not None:
            return self.error[0], error_of(self.error[1])
        names = ("AccessKeyId", "SecretAccessKey", "SessionToken" if action else "Token", "Expiration")
        end = datetime.now(timezone.utc) + timedelta(seconds=self.lifetime)
        found = dict(zip(names, (*self.keys, "t0ken+/=", end.strftime("%Y-%m-%dT%H:%M:%SZ")), strict=True))
        if not action:
            return 200, found
        fields = "".join(f"<{name}>{text}</{name}>" for name, text in found.items())
        return 200, answer_of(action, f"<Credentials>{fields}</Credentials>")


def answer_of(action: str, result: str) -> str:
    namespace = "https://sts.amazonaws.com/doc/2011-06-15/"
    return f'<{action}Response xmlns="{namespace}"><{action}Result>{result}</{action}Result></{action}Response>'


def error_of(code: str) -> str:
    return f"<ErrorResponse><Error><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"


@pytest.fixture
def service(aws: pytest.MonkeyPatch) -> Iterator[Aws]:
    with token_service.running() as http:
        aws.setenv("AWS_ENDPOINT_URL_STS", http.url)
        aws.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", http.url)
        yield Aws(http)


def no_keys(aws: pytest.MonkeyPatch) -> None:
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")


def keys_of(profile: str, access_key: str, secret_key: str) -> str:
    return f"[{profile}]\naws_access_key_id={access_key}\naws_secret_access_key={secret_key}\n"


def signer_of(tokens: MskIamTokens) -> str:
    """The access key of a valid new token."""
    return check_token(tokens.fetch(after()).text, SECRET_KEYS)


@pytest.mark.parametrize("session", [{}, {"X-Amz-Security-Token": "t0ken+/="}], ids=["a key", "a session"])
def test_a_token_is_the_signed_request_to_connect(aws: pytest.MonkeyPatch, session: dict[str, str]) -> None:
    for session_token in session.values():
        aws.setenv("AWS_SESSION_TOKEN", session_token)
    aws.setattr("botocore.auth.get_current_datetime", lambda: datetime(2026, 11, 22, 21, 26, 38))  # noqa: DTZ001
    host, parameters = parameters_of(DEFAULT.fetch(after()).text)
    signed = session | {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{ACCESS_KEY}/20261122/{REGION}/kafka-cluster/aws4_request",
        "X-Amz-Date": "20261122T212638Z",
        "X-Amz-Expires": "900",
        "X-Amz-SignedHeaders": "host",
    }
    assert host == f"kafka.{REGION}.amazonaws.com"
    assert parameters.pop("User-Agent").startswith("aws-msk-iam-sasl-signer-python/")
    assert parameters.pop("X-Amz-Signature") == signature(SECRET_KEY, host, signed)
    assert parameters == signed


def test_a_role_is_assumed_once_and_its_credentials_sign(service: Aws) -> None:
    assert [signer_of(ROLE) for _ in range(3)] == ["AKIDROLE"] * 3
    (request,) = service.requests
    sent = [request.form[name] for name in ("Action", "RoleArn", "RoleSessionName", "ExternalId")]
    assert sent == [["AssumeRole"], [ROLE_ARN], ["aws-msk-iam-auth"], ["ext"]]


@pytest.mark.parametrize("source", ["role", "container"])
def test_no_token_outlives_its_credentials(service: Aws, aws: pytest.MonkeyPatch, source: str) -> None:
    if source == "container":
        no_keys(aws)
    tokens = ROLE if source == "role" else DEFAULT
    service.lifetime = 60.0
    assert signer_of(tokens) == "AKIDROLE"
    service.keys = "AKIDNEW", "n3w-secret"
    assert signer_of(tokens) == "AKIDNEW"


def test_a_renewed_file_with_keys_is_read_for_the_next_token(aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_keys(aws)
    for key in ("AKIDROLE", "AKIDNEW"):
        (tmp_path / "credentials").write_text(keys_of("orders", key, SECRET_KEYS[key]))
        assert signer_of(PROFILE) == key


def test_a_role_is_assumed_again_after_its_keys_changed(service: Aws, aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_keys(aws)
    (tmp_path / "config").write_text(f"[profile orders]\nrole_arn={ROLE_ARN}\nsource_profile=base\n")
    service.lifetime = 60.0
    for service.caller in ("AKIDOLD", "AKIDBASE"):
        (tmp_path / "credentials").write_text(keys_of("base", service.caller, "b4se"))
        if service.caller == "AKIDBASE":
            with pytest.raises(BrokerUnavailable, match="ExpiredToken"):
                signer_of(PROFILE)
        assert signer_of(PROFILE) == "AKIDROLE"


def test_credentials_that_cannot_be_renewed_sign_until_they_end_and_are_renewed_later(service: Aws) -> None:
    service.lifetime = 800.0  # AWS's library begins to renew them a quarter of an hour before their end
    assert signer_of(ROLE) == "AKIDROLE"
    service.error = 500, "InternalFailure"
    assert signer_of(ROLE) == "AKIDROLE"
    service.error, service.keys = None, ("AKIDNEW", "n3w-secret")
    assert signer_of(ROLE) == "AKIDNEW"


NO_PROFILE = MskIamTokens(MskIam(REGION, profile="s4les"))
ALL = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
HALF = ("AWS_SECRET_ACCESS_KEY",)
DENIED, FAILS = (403, "AccessDenied"), (503, "ServiceUnavailable")
FINAL, RETRIED = AuthenticationFailed, BrokerUnavailable


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ((DEFAULT, ALL, None), FINAL, "No AWS credentials.*IAM role.*AWS_ACCESS_KEY_ID.*awsProfileName"),
        ((DEFAULT, HALF, None), FINAL, "No AWS credentials.*Partial.*AWS_SECRET_ACCESS_KEY"),
        ((NO_PROFILE, (), None), FINAL, r"s4les.*awsProfileName.*~/\.aws/config"),
        ((ROLE, (), DENIED), FINAL, "AccessDenied.*may assume awsRoleArn .*role/orders"),
        ((ROLE, (), FAILS), RETRIED, "gave no credentials.*503|ServiceUnavailable"),
        ((PROFILE, (), None), RETRIED, "gave no credentials.*/no/such/program"),
    ],
    ids=["none", "half a key", "no profile", "denied", "fails", "no program"],
)
def test_the_error_without_credentials_says_why_and_only_wrong_settings_are_final(
    aws: pytest.MonkeyPatch, service: Aws, tmp_path: Path, given: Any, kind: type[GroupSourceError], says: str
) -> None:
    tokens, removed, service.error = given
    (tmp_path / "config").write_text("[profile orders]\ncredential_process = /no/such/program\n")
    for name in removed:
        aws.delenv(name)
    with pytest.raises(kind, match=says) as raised:
        tokens.fetch(after())
    assert SECRET_KEY not in str(raised.value)


def test_a_token_service_that_hangs_times_out_at_the_deadline(service: Aws) -> None:
    service.hold = threading.Event()
    timeouts = 0
    while not service.requests or timeouts < 5:
        with pytest.raises(DeadlineExceeded, match="no credentials for Amazon MSK in time"):
            ROLE.fetch(after(0.1))
        timeouts += 1
    assert len(service.requests) == 1
    service.hold.set()
    assert signer_of(ROLE) == "AKIDROLE"


def test_the_error_without_the_signer_names_the_package(aws: pytest.MonkeyPatch) -> None:
    aws.delitem(sys.modules, "spark_group_source.auth.aws_signer")
    aws.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(AuthenticationFailed, match=r"each executor run: pip install 'spark_group_source\[msk\]'"):
        DEFAULT.fetch(after())


def test_the_identity_is_logged_if_set(service: Aws, aws: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    logged = MskIamTokens(MskIam(REGION, log_identity=True))
    with caplog.at_level(logging.INFO, "spark_group_source"):
        signer_of(DEFAULT)
        assert caplog.text == ""
        for _ in range(3):
            signer_of(logged)
        eventually(lambda: "belong to" in caplog.text)
    assert caplog.text.count("belong to arn:aws:sts::1:assumed-role/orders/me") == 1
    assert len(service.requests) == 1
    assert SECRET_KEY not in caplog.text
    # The credentials are good while this service does not answer, or is out of reach.
    aws_signer._logged.clear()
    service.hold = threading.Event()
    assert signer_of(logged) == ACCESS_KEY
    service.hold.set()
    aws.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    aws_signer._logged.clear()
    assert signer_of(logged) == ACCESS_KEY


IAM = {
    "kafka.group.id": "g",
    "subscribe": "t",
    "startingOffsets": "earliest",
    "kafka.heartbeat.interval.ms": "50",
    "kafka.security.protocol": "SASL_PLAINTEXT",  # MSK has SASL_SSL only
    "kafka.sasl.mechanism": "AWS_MSK_IAM",
    "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}


@pytest.fixture
def msk(aws: pytest.MonkeyPatch) -> Iterator[FakeMsk]:
    """A cluster whose brokers' names this machine resolves to itself."""
    resolve = socket.getaddrinfo

    def resolved(name: Any, *arguments: Any, **more: Any) -> Any:
        local = isinstance(name, str) and name.endswith(".amazonaws.com")
        return resolve("127.0.0.1" if local else name, *arguments, **more)

    aws.setattr(socket, "getaddrinfo", resolved)
    running = FakeMsk({ACCESS_KEY: SECRET_KEY}, session_ms=200)
    with running:
        running.create_topic("t", partitions=2)
        for partition in (0, 1):
            running.produce("t", ["a", "b"], partition=partition)
        yield running


def test_a_query_with_javas_options_reads_commits_and_keeps_its_membership_while_sessions_end(msk: FakeMsk) -> None:
    with drivers(IAM | {"kafka.bootstrap.servers": msk.bootstrap_servers}) as start:
        driver = start()
        driver.complete(driver.plan_batch(BatchOffset(), None))
        eventually(lambda: len(msk.accepted) > 6)
        assert msk.group("g").classic.members
        committed = {("t", 0): 2, ("t", 1): 2}
        eventually(lambda: {key: offset for key, (offset, _) in msk.group("g").offsets.items()} == committed)
        assert set(msk.accepted) == {ACCESS_KEY}
        counters = driver._assigned_partitions.counters
        assert (counters.rebalances, counters.lost) == (1, 0)


def test_the_error_of_a_rejected_token_says_what_to_check(msk: FakeMsk) -> None:
    msk.secret_keys = {ACCESS_KEY: "another"}
    rejected = pytest.raises(AuthenticationFailed, match=f"wrong signature.*kafka-cluster:Connect.*{REGION}")
    with drivers(IAM | {"kafka.bootstrap.servers": msk.bootstrap_servers}) as start, rejected as raised:
        start()
    assert SECRET_KEY not in str(raised.value)
