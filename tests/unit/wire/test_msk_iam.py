"""Amazon MSK with IAM: tokens that brokers with the signer's own rules accept, and where credentials come from."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, GroupSourceError
from spark_group_source.offsets import BatchOffset
from spark_group_source.wire import aws_signer
from spark_group_source.wire.tokens import MskIamTokens
from tests.drivers import drivers
from tests.fake_msk import (
    ACCESS_KEY,
    REGION,
    SECRET_KEY,
    FakeMsk,
    TokenService,
    check_token,
    parameters_of,
    signature,
    token_service,
)
from tests.unit.wire_options import after
from tests.waiting import eventually

SECRET_KEYS = {ACCESS_KEY: SECRET_KEY, "AKIDROLE": "r0le-secret", "AKIDNEW": "n3w-secret"}
ROLE = MskIamTokens(REGION, role_arn="arn:aws:iam::123456789012:role/orders", role_external_id="ext")


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """A machine whose environment has the credentials of the examples, and neither profiles nor metadata."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        "NO_PROXY": "*",
    }.items():
        monkeypatch.setenv(name, value)
    aws_signer._renewing.clear()
    aws_signer._logged.clear()
    yield monkeypatch
    aws_signer._renewing.clear()


@pytest.fixture
def service(aws: pytest.MonkeyPatch) -> Iterator[TokenService]:
    with token_service(("AKIDROLE", "r0le-secret")) as running:
        for name, value in running.environment().items():
            aws.setenv(name, value)
        yield running


def no_keys(aws: pytest.MonkeyPatch) -> None:
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")


def signer_of(tokens: MskIamTokens) -> str:
    """The access key of a valid new token."""
    return check_token(tokens.fetch(after()).text, SECRET_KEYS)


@pytest.mark.parametrize("session_token", [None, "t0ken+/="])
def test_a_token_is_the_signed_request_to_connect(aws: pytest.MonkeyPatch, session_token: str | None) -> None:
    if session_token is not None:
        aws.setenv("AWS_SESSION_TOKEN", session_token)
    aws.setattr("botocore.auth.get_current_datetime", lambda: datetime(2026, 11, 22, 21, 26, 38))  # noqa: DTZ001
    host, parameters = parameters_of(MskIamTokens(REGION).fetch(after()).text)
    signed = {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{ACCESS_KEY}/20261122/{REGION}/kafka-cluster/aws4_request",
        "X-Amz-Date": "20261122T212638Z",
        "X-Amz-Expires": "900",
        "X-Amz-SignedHeaders": "host",
    }
    if session_token is not None:
        signed["X-Amz-Security-Token"] = session_token
    assert host == f"kafka.{REGION}.amazonaws.com"
    assert parameters.pop("User-Agent").startswith("aws-msk-iam-sasl-signer-python/")
    assert parameters.pop("X-Amz-Signature") == signature(SECRET_KEY, host, signed)
    assert parameters == signed


def test_a_role_is_assumed_once_and_its_credentials_sign(service: TokenService) -> None:
    assert [signer_of(ROLE) for _ in range(3)] == ["AKIDROLE"] * 3
    (request,) = service.requests
    assert (request["Action"], request["RoleArn"]) == ("AssumeRole", ROLE.role_arn)
    assert (request["RoleSessionName"], request["ExternalId"]) == ("aws-msk-iam-auth", "ext")


@pytest.mark.parametrize("source", ["role", "container"])
def test_no_token_outlives_its_credentials(service: TokenService, aws: pytest.MonkeyPatch, source: str) -> None:
    if source == "container":
        no_keys(aws)
    tokens = ROLE if source == "role" else MskIamTokens(REGION)
    service.lifetime = 60.0
    assert signer_of(tokens) == "AKIDROLE"
    service.keys = "AKIDNEW", "n3w-secret"
    assert signer_of(tokens) == "AKIDNEW"


def test_a_renewed_file_with_keys_is_read_for_the_next_token(aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_keys(aws)
    for key in ("AKIDROLE", "AKIDNEW"):
        lines = f"[orders]\naws_access_key_id={key}\naws_secret_access_key={SECRET_KEYS[key]}\n"
        (tmp_path / "credentials").write_text(lines)
        assert signer_of(MskIamTokens(REGION, profile="orders")) == key


def test_a_role_is_assumed_again_after_its_keys_changed(
    service: TokenService, aws: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_keys(aws)
    (tmp_path / "config").write_text(f"[profile orders]\nrole_arn={ROLE.role_arn}\nsource_profile=base\n")
    service.lifetime = 60.0
    for service.caller in ("AKIDOLD", "AKIDBASE"):
        (tmp_path / "credentials").write_text(
            f"[base]\naws_access_key_id={service.caller}\naws_secret_access_key=b4se\n"
        )
        if service.caller == "AKIDBASE":
            with pytest.raises(BrokerUnavailable, match="ExpiredToken"):
                signer_of(MskIamTokens(REGION, profile="orders"))
        assert signer_of(MskIamTokens(REGION, profile="orders")) == "AKIDROLE"


def test_credentials_that_cannot_be_renewed_sign_until_they_end_and_are_renewed_later(service: TokenService) -> None:
    service.lifetime = 800.0  # AWS's library begins to renew them a quarter of an hour before their end
    assert signer_of(ROLE) == "AKIDROLE"
    service.error = 500, "InternalFailure"
    assert signer_of(ROLE) == "AKIDROLE"
    service.error, service.keys = None, ("AKIDNEW", "n3w-secret")
    assert signer_of(ROLE) == "AKIDNEW"


DEFAULT = MskIamTokens(REGION)
PROFILE = MskIamTokens(REGION, profile="orders")
NO_PROFILE = MskIamTokens(REGION, profile="s4les")
NONE = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_CONTAINER_CREDENTIALS_FULL_URI": None}
HALF = {"AWS_SECRET_ACCESS_KEY": None}
DENIED, FAILS = (403, "AccessDenied"), (503, "ServiceUnavailable")
FINAL, RETRIED = AuthenticationFailed, BrokerUnavailable


@pytest.mark.parametrize(
    ("tokens", "environment", "error", "kind", "says"),
    [
        (DEFAULT, NONE, None, FINAL, "No AWS credentials.*IAM role.*AWS_ACCESS_KEY_ID.*awsProfileName"),
        (DEFAULT, HALF, None, FINAL, "No AWS credentials.*Partial.*AWS_SECRET_ACCESS_KEY"),
        (NO_PROFILE, {}, None, FINAL, r"s4les.*awsProfileName.*~/\.aws/config"),
        (ROLE, {}, DENIED, FINAL, "AccessDenied.*may assume awsRoleArn .*role/orders"),
        (ROLE, {}, FAILS, RETRIED, "gave no credentials.*503|ServiceUnavailable"),
        (PROFILE, {}, None, RETRIED, "gave no credentials.*/no/such/program"),
    ],
    ids=["none", "half a key", "no profile", "denied", "fails", "no program"],
)
def test_the_error_without_credentials_says_why_and_only_wrong_settings_are_final(
    aws: pytest.MonkeyPatch,
    service: TokenService,
    tmp_path: Path,
    tokens: MskIamTokens,
    environment: dict[str, str | None],
    error: tuple[int, str] | None,
    kind: type[GroupSourceError],
    says: str,
) -> None:
    (tmp_path / "config").write_text("[profile orders]\ncredential_process = /no/such/program\n")
    for name, value in environment.items():
        aws.delenv(name) if value is None else aws.setenv(name, value)
    service.error = error
    with pytest.raises(kind, match=says) as raised:
        tokens.fetch(after())
    assert SECRET_KEY not in str(raised.value)


def test_a_token_service_that_hangs_times_out_at_the_deadline(service: TokenService) -> None:
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
    aws.delitem(sys.modules, "spark_group_source.wire.aws_signer")
    aws.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(AuthenticationFailed, match=r"each executor run: pip install 'spark_group_source\[msk\]'"):
        MskIamTokens(REGION).fetch(after())


def test_the_identity_is_logged_if_wanted(service: TokenService, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "spark_group_source"):
        signer_of(MskIamTokens(REGION))
        assert caplog.text == ""
        for _ in range(3):
            signer_of(MskIamTokens(REGION, log_identity=True))
        eventually(lambda: "are those of" in caplog.text)
    assert caplog.text.count("are those of arn:aws:sts::1:assumed-role/orders/me") == 1
    assert len(service.requests) == 1
    assert SECRET_KEY not in caplog.text
    # The credentials are good while this service does not answer, or is out of reach.
    aws_signer._logged.clear()
    service.hold = threading.Event()
    assert signer_of(MskIamTokens(REGION, log_identity=True)) == ACCESS_KEY
    service.hold.set()
    service.shutdown()
    service.server_close()
    aws_signer._logged.clear()
    assert signer_of(MskIamTokens(REGION, log_identity=True)) == ACCESS_KEY


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
        assert {key: offset for key, (offset, _) in msk.group("g").offsets.items()} == {("t", 0): 2, ("t", 1): 2}
        assert set(msk.accepted) == {ACCESS_KEY}
        counters = driver._assigned_partitions.counters
        assert (counters.rebalances, counters.lost) == (1, 0)


def test_the_error_of_a_rejected_token_says_what_to_check(msk: FakeMsk) -> None:
    msk.secret_keys = {ACCESS_KEY: "another"}
    rejected = pytest.raises(AuthenticationFailed, match=f"wrong signature.*kafka-cluster:Connect.*{REGION}")
    with drivers(IAM | {"kafka.bootstrap.servers": msk.bootstrap_servers}) as start, rejected as raised:
        start()
    assert SECRET_KEY not in str(raised.value)
