"""Requests to a token endpoint: what is sent, and the errors."""

from __future__ import annotations

import base64
import dataclasses
import logging
import time
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.auth.oauth.client_tokens import ClientTokens
from spark_group_source.auth.tls import Tls
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, GroupSourceError
from tests.certificates import Authority
from tests.unit.auth.oauth.clients import clocked, fetched, turn
from tests.unit.auth.oauth.token_service import SECRET, TokenService, jwt, running, token_answer
from tests.unit.wire_options import after

KEY = "k3y-of-the-gateway"


EXPIRED = datetime(2020, 1, 1, tzinfo=timezone.utc)


UNTRUSTED = r"client rejected: .*ssl\.truststore\.location.*jaas"


NO_FILE = r"'ssl\.truststore\.location' in 'kafka\.sasl\.jaas\.config' cannot be read"


OTHER_HOST = r"mismatch.*Use a host name of the certificate in '.*endpoint\.url', or .*'ssl\.endpoint\.ident"


def test_the_request_is_that_of_javas_client(service: TokenService) -> None:
    client = service.client(scope="read write", extensions=(("logicalCluster", "lkc-1"),))
    token = ClientTokens(client).fetch(after())
    assert (token.text.count("."), token.extensions) == (2, {"logicalCluster": "lkc-1"})
    assert SECRET not in repr(client)
    assert token.text not in repr(token)
    (request,) = service.requests
    assert request.form == {"grant_type": ["client_credentials"], "scope": ["read write"]}
    assert request.credentials == f"orders:{SECRET}"
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert request.headers["Accept"] == "application/json"
    fetched(service.client(encode_header=True))
    assert service.requests[1].credentials == "orders:s3cret%26%2F%3D%C3%A4"
    assert service.requests[1].form == {"grant_type": ["client_credentials"]}


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (
            (401, {"error": "invalid_client", "error_description": f"no {SECRET} here"}),
            AuthenticationFailed,
            r"HTTP status 401 \(invalid_client: no \.\.\. here\)\. Check 'kafka.*client.id'.*header.urlencode",
        ),
        ((400, {"error": "invalid_scope"}), AuthenticationFailed, r"\(invalid_scope\)\. Check 'kafka.*scope'"),
        ((400, {"error": "unauthorized_client"}), AuthenticationFailed, "Allow the grant client_credentials"),
        ((400, {"errorCode": "E1", "errorSummary": "no"}), AuthenticationFailed, r"400 \(E1: no\)"),
        ((404, "not found"), AuthenticationFailed, r"404\. Check 'kafka.sasl.oauthbearer.token.endpoint.url'"),
        ((302, ""), AuthenticationFailed, r"302\. Check 'kafka.sasl.oauthbearer.token.endpoint.url'"),
        ((501, ""), AuthenticationFailed, "501"),
        ((503, {"error": "temporarily_unavailable"}), BrokerUnavailable, r"503 \(temporarily_unavailable\)"),
        ((429, {"error": "slow_down"}), BrokerUnavailable, "429"),
        ((200, "<html>welcome</html>"), AuthenticationFailed, "not a JSON object.*token.endpoint.url"),
        ((200, b"\xff\xfe\x00"), AuthenticationFailed, "not a JSON object"),
        ((200, ["access_token"]), AuthenticationFailed, "not a JSON object"),
        ((200, {"access_token": 5}), AuthenticationFailed, "without an access_token"),
        ((200, {"access_token": "a\x01b", "expires_in": 60}), AuthenticationFailed, "characters that no token"),
        ((200, {"access_token": "opaque"}), AuthenticationFailed, "is not a JWT, and the answer has no expires_in"),
        ((200, {"access_token": "a.b.c"}), AuthenticationFailed, "is not a JWT"),
        ((200, {"access_token": jwt(None, exp="soon")}), AuthenticationFailed, "has no claim exp"),
        ((200, {"access_token": jwt(None, exp=int(time.time()) - 3600)}), AuthenticationFailed, r"expired \d+ s ago\."),
        ((200, {"access_token": jwt(86_400), "expires_in": 0.5}), AuthenticationFailed, "valid for 0.5 s only"),
    ],
)
def test_every_bad_answer_is_an_error_that_says_what_to_change(
    service: TokenService, answer: tuple[int, Any], kind: type[GroupSourceError], says: str
) -> None:
    service.answer = lambda: answer
    service.headers = {"Location": f"{service.url}/elsewhere"}
    with pytest.raises(GroupSourceError, match=says) as raised:
        fetched(service.client())
    assert type(raised.value) is kind
    assert service.url in str(raised.value)
    basic = base64.b64encode(f"orders:{SECRET}".encode()).decode()
    for secret in (SECRET, "s3cret", basic, "eyJ"):
        assert secret not in str(raised.value)
    assert len(service.requests) == 1


def test_an_answer_that_is_not_oauths_is_final_only_if_the_endpoint_never_worked(service: TokenService) -> None:
    client, cache, hand = clocked(service, 10.0)
    fetched(client)
    not_oauths: list[tuple[int, Any]] = [(404, ""), (200, "<html>maintenance</html>"), (200, {})]
    for answer in (*not_oauths, (401, {"error": "invalid_client"})):
        service.answer = lambda answer=answer: answer  # type: ignore[misc]
        turn(hand, cache, 100.0)
        with pytest.raises(BrokerUnavailable if answer in not_oauths else AuthenticationFailed):
            fetched(client)


@pytest.mark.parametrize(
    ("ca", "host", "ends", "says"),
    [
        (None, "127.0.0.1", None, UNTRUSTED),
        ("other.pem", "127.0.0.1", None, UNTRUSTED),
        ("/no/such.pem", "127.0.0.1", None, NO_FILE),
        ("ca.pem", "127.0.0.1", EXPIRED, "certificate has expired. Renew the certificate"),
        ("ca.pem", "other", None, OTHER_HOST),
    ],
    ids=["not trusted", "of another authority", "no file", "expired", "of another host"],
)
def test_the_certificate_of_the_endpoint_must_be_trusted_and_the_error_has_reason_and_action(
    tmp_path: Path, ca: str | None, host: str, ends: datetime | None, says: str
) -> None:
    Authority(tmp_path, "other")
    authority = Authority(tmp_path, "ca")
    tls = Tls(ca_file=ca and str(tmp_path / ca), in_jaas_config=True)
    rejected = pytest.raises(AuthenticationFailed, match=says)
    with running(authority.issue(host, file="server.pem", ends=ends)) as service, rejected as refused:
        fetched(service.client(tls=tls))
    assert "kafka.ssl" not in str(refused.value)
    assert ("truststore" in str(refused.value)) == ("truststore" in says)
    assert not service.requests


def test_an_endpoint_that_rejects_the_clients_certificate_is_an_error_that_names_the_keystore(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    # With TLS 1.3 the alert comes after the handshake, and the end of the connection may be faster.
    tls = Tls(ca_file=str(authority.file), versions=("TLSv1.2",), in_jaas_config=True)
    accepted = dataclasses.replace(tls, key_file=str(authority.issue("client", file="client.pem")))
    rejected = dataclasses.replace(tls, key_file=str(other.issue("client", file="other-client.pem")))
    with running(authority.issue("127.0.0.1", file="server.pem"), clients_of=authority.file) as service:
        assert fetched(service.client(tls=accepted))
        with pytest.raises(AuthenticationFailed, match=r"rejected this client's certificate \(.*CA\)") as refused:
            fetched(service.client(tls=rejected))
    assert "'ssl.keystore.location' in 'kafka.sasl.jaas.config'" in str(refused.value)


def test_https_to_a_service_without_tls_names_the_option(service: TokenService) -> None:
    url = service.url.replace("http:", "https:") + "/t"
    with pytest.raises(AuthenticationFailed, match=r"does not use TLS on this port .*token\.endpoint\.url"):
        fetched(service.client(endpoint=url, tls=Tls()))


def test_no_error_and_no_log_line_shows_the_urls_query(service: TokenService, caplog: pytest.LogCaptureFixture) -> None:
    query = f"/token?subscription-key={KEY}"
    service.answer = lambda: (401, {"error": "invalid_client", "error_description": f"no rights for {KEY}"})
    for url, says in (
        (service.url, r"/token answered HTTP status 401 .*no rights for \.\.\."),
        ("http://127.0.0.1:1", "http://127.0.0.1:1/token cannot be reached: .*refused"),
        ("http://no.such.host.invalid", r"no\.such\.host\.invalid/token cannot be reached"),
    ):
        with pytest.raises(AuthenticationFailed if url == service.url else BrokerUnavailable, match=says) as failed:
            fetched(service.client(endpoint=url + query))
        assert KEY not in "".join(traceback.format_exception(failed.value))
    service.answer = lambda: (200, token_answer())
    with caplog.at_level(logging.INFO):
        fetched(service.client(endpoint=f"{service.url}{query}&again"))
    assert f"{service.url}/token issued a token" in caplog.text
    assert KEY not in caplog.text
    assert f"subscription-key={KEY}" in service.requests[-1].path
