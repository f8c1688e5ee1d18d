"""SASL without a broker: arguments of mechanisms, errors in responses, and the lifetime of sessions."""

from __future__ import annotations

import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, GroupSourceError
from spark_group_source.text import Secret
from spark_group_source.wire.sasl import SESSION_PART, authenticate
from spark_group_source.wire.settings import Sasl
from spark_group_source.wire.tokens import FunctionTokens, Token

LONG = 90.0
RELEASE = threading.Event()
ANSWERED = threading.Event()
CALLS: list[int] = []
PLAIN = Sasl("PLAIN", "alice", Secret("s3cret"))


class Broker:
    """Returns the given responses and keeps the messages that were sent."""

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)
        self.sent: list[bytes] = []

    def __call__(self, request: Any) -> Any:
        if request.name == "SaslAuthenticateRequest":
            self.sent.append(request.auth_bytes)
        return next(self._answers)


def welcome(error: int = 0, mechanisms: tuple[str, ...] = ("PLAIN",)) -> Any:
    return SaslHandshakeResponse(version=1, error_code=error, mechanisms=list(mechanisms))


def answer(told: bytes = b"", lifetime: int = 0, error: int = 0, message: str | None = None) -> Any:
    return SaslAuthenticateResponse(
        version=2, error_code=error, error_message=message, auth_bytes=told, session_lifetime_ms=lifetime
    )


def authenticated(settings: Sasl, *answers: Any) -> tuple[float | None, list[bytes]]:
    broker = Broker(*answers)
    return authenticate(settings, "host", "1 (host:9092)", broker, Deadline.after(LONG)), broker.sent


def test_a_session_with_a_lifetime_is_replaced_before_its_end() -> None:
    assert authenticated(PLAIN, welcome(), answer()) == (None, [b"alice\0alice\0s3cret"])
    assert authenticated(PLAIN, welcome(), answer(lifetime=10_000))[0] == 10 * SESSION_PART


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([welcome(33, ("GSSAPI", "SCRAM-SHA-512"))], "not enable 'PLAIN'.*GSSAPI, SCRAM-SHA-512.*kafka.sasl.mechanism"),
        ([welcome(34)], "does not use SASL.*kafka.security.protocol"),
        ([welcome(42)], "42 "),
        ([welcome(), answer(error=58, message="no such user")], "no such user.*kafka.sasl.password"),
        ([welcome(), answer(error=58)], "58 "),
    ],
)
def test_the_error_of_a_rejection_names_the_option_to_change(answers: list[Any], says: str) -> None:
    with pytest.raises(AuthenticationFailed, match=says) as refused:
        authenticated(PLAIN, *answers)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_password_that_is_not_text_never_appears(mechanism: str) -> None:
    settings = Sasl(mechanism, "alice", Secret("s3cret\udc80"))
    nonce = answer(b"r=x,s=AAAA,i=4096")
    with pytest.raises(AuthenticationFailed) as refused:
        authenticated(settings, welcome(), nonce, nonce)
    assert "s3cret" not in "".join(traceback.format_exception(refused.value))


def test_a_broker_that_does_not_prove_that_it_knows_the_password_is_rejected() -> None:
    class Impostor(Broker):
        def __call__(self, request: Any) -> Any:
            if request.name != "SaslAuthenticateRequest":
                return welcome()
            self.sent.append(request.auth_bytes)
            if len(self.sent) == 2:
                return answer(b"v=AAAA")
            nonce = request.auth_bytes.rpartition(b"r=")[2]
            return answer(b"r=" + nonce + b"x,s=AAAA,i=4096")

    scram = Sasl("SCRAM-SHA-256", "ali,ce=", Secret("s3cret"))
    broker = Impostor()
    with pytest.raises(AuthenticationFailed, match="wrong signature") as refused:
        authenticate(scram, "host", "1 (host:9092)", broker, Deadline.after(LONG))
    assert broker.sent[0].startswith(b"n,,n=ali=2Cce=3D,r=")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("iterations", ["1", "4095", "4096", "+1", "\uff11", "4096,i=1"])
def test_a_scram_broker_may_not_ask_for_few_iterations(iterations: str) -> None:
    class Asking(Broker):
        def __call__(self, request: Any) -> Any:
            if request.name != "SaslAuthenticateRequest":
                return welcome()
            self.sent.append(request.auth_bytes)
            nonce = request.auth_bytes.rpartition(b"r=")[2]
            return answer(b"r=" + nonce + f"x,s=AAAA,i={iterations}".encode())

    broker = Asking()
    scram = Sasl("SCRAM-SHA-512", "alice", Secret("s3cret"))
    with pytest.raises(AuthenticationFailed) as refused:
        authenticate(scram, "host", "1 (host:9092)", broker, Deadline.after(LONG))
    if iterations == "4096":
        assert len(broker.sent) == 2
    else:
        assert "iterations of SCRAM-SHA-512; 4096 is the minimum. " in str(refused.value)
        assert len(broker.sent) == 1, "the proof must not leave"


def test_the_error_of_bytes_that_are_no_text_names_what_may_be_wrong() -> None:
    token = Sasl("OAUTHBEARER", token_provider=tokens_of("the_token"))
    with pytest.raises(AuthenticationFailed, match="by OAUTHBEARER failed: a message is not UTF-8 text") as refused:
        authenticated(token, welcome(), answer(b"\xff\xfe"))
    assert "password" not in str(refused.value)
    with pytest.raises(
        AuthenticationFailed, match="the user name, the password or a message of the broker is not UTF-8"
    ):
        authenticated(Sasl("PLAIN", "alice", Secret("s3cret\udc80")), welcome(), answer())


def the_token() -> str:
    return "t0ken"


def token_and_extensions() -> tuple[str, dict[str, str]]:
    return "t0ken", {"logicalCluster": "lkc-1"}


def token_of_a_file() -> str:
    return "t0ken\n"


def blank() -> str:
    return " \n"


def no_token() -> None:
    return None


def extensions_that_are_none() -> tuple[str, str]:
    return "t0ken", "x"


def failing() -> str:
    raise ConnectionError("the provider is down")


def quitting() -> str:
    sys.exit("no credentials")


def hanging() -> str:
    RELEASE.wait(LONG)
    return "t0ken"


def hanging_once() -> str:
    CALLS.append(1)
    ANSWERED.wait(LONG)
    return f"t0ken{len(CALLS)}"


def tokens_of(function: str) -> FunctionTokens:
    return FunctionTokens(f"{__name__}:{function}")


def test_tokens_and_extensions_come_from_the_users_function() -> None:
    bearer = Sasl("OAUTHBEARER", token_provider=tokens_of("the_token"))
    assert authenticated(bearer, welcome(), answer(lifetime=1000))[1] == [b"n,,\x01auth=Bearer t0ken\x01\x01"]
    bearer = Sasl("OAUTHBEARER", token_provider=tokens_of("token_and_extensions"))
    sent = b"n,,\x01auth=Bearer t0ken\x01logicalCluster=lkc-1\x01\x01"
    assert authenticated(bearer, welcome(), answer())[1] == [sent]
    assert tokens_of("token_of_a_file").fetch(Deadline.after(LONG)) == Token("t0ken", {})


@pytest.mark.parametrize(
    ("function", "kind", "says"),
    [
        ("no_token", AuthenticationFailed, "returned a NoneType.*the token as text"),
        ("blank", AuthenticationFailed, "returned a str"),
        ("extensions_that_are_none", AuthenticationFailed, "returned a tuple"),
        ("failing", BrokerUnavailable, "token.provider' failed: ConnectionError.*down"),
        ("quitting", BrokerUnavailable, "token.provider' failed: SystemExit.*no credentials"),
    ],
)
def test_the_error_of_a_function_without_a_token_names_the_function(
    function: str, kind: type[GroupSourceError], says: str
) -> None:
    with pytest.raises(kind, match=says) as refused:
        tokens_of(function).fetch(Deadline.after(LONG))
    assert "t0ken" not in str(refused.value)


def test_a_token_function_that_hangs_times_out_at_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match=r"token\.provider' did not return in time"):
        tokens_of("hanging").fetch(Deadline.after(0.2))
    RELEASE.set()


def test_a_token_function_that_hangs_is_not_called_again_before_it_returns() -> None:
    for _ in range(5):
        with pytest.raises(DeadlineExceeded):
            tokens_of("hanging_once").fetch(Deadline.after(0.02))
    assert len(CALLS) == 1
    threading.Timer(0.1, ANSWERED.set).start()
    assert tokens_of("hanging_once").fetch(Deadline.after(LONG)).text == "t0ken1"
    assert tokens_of("hanging_once").fetch(Deadline.after(LONG)).text == "t0ken2"


class GSSError(Exception):
    """Like gssapi's error; for a real error see tests/integration/test_kerberos.py."""

    def __init__(self, minor: int) -> None:
        super().__init__("Unspecified GSS failure")
        self.min_code = minor % 2**32


def gssapi(monkeypatch: pytest.MonkeyPatch, begin: Callable[[object], bytes]) -> Sasl:
    """Returns settings of a mechanism whose library calls ``begin`` to request a ticket from a KDC."""
    name = types.SimpleNamespace(canonicalize=lambda _: "name")
    library = types.SimpleNamespace(
        Name=lambda *_, **__: name,
        NameType=types.SimpleNamespace(hostbased_service=1),
        MechType=types.SimpleNamespace(kerberos=1),
        SecurityContext=lambda **_: types.SimpleNamespace(step=begin, complete=False),
    )
    monkeypatch.setitem(sys.modules, "gssapi", library)
    return Sasl("GSSAPI", kerberos_service="kafka")


@pytest.mark.parametrize(
    ("minor", "kind"),
    [
        (-1765328228, BrokerUnavailable),  # Cannot contact any KDC
        (-1765328164, BrokerUnavailable),  # Cannot resolve network address for KDC
        (-1765328355, BrokerUnavailable),  # A service is not available
        (-1765328352, BrokerUnavailable),  # Ticket expired
        (-1765328377, AuthenticationFailed),  # Server not found in Kerberos database
        (-1765328243, AuthenticationFailed),  # No Kerberos credentials available
    ],
)
def test_temporary_errors_of_a_kdc_are_retriable(
    monkeypatch: pytest.MonkeyPatch, minor: int, kind: type[GroupSourceError]
) -> None:
    def refused(_: object) -> bytes:
        raise GSSError(minor)

    with pytest.raises(kind, match="by GSSAPI failed: GSSError.*klist"):
        authenticated(gssapi(monkeypatch, refused), welcome())


def test_a_silent_kdc_times_out_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    settings = gssapi(monkeypatch, lambda _: b"ticket" if answered.wait(LONG) else b"")
    with pytest.raises(DeadlineExceeded, match=r"no ticket for broker 1 \(host:9092\)"):
        authenticate(settings, "host", "1 (host:9092)", Broker(welcome()), Deadline.after(0.2))
    answered.set()
