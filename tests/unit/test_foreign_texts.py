"""Texts of brokers, other members and token endpoints in errors and logs: one line, printable, of bounded length."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from spark_group_source.auth.oauth.client import ClientCredentials
from spark_group_source.auth.oauth.endpoint import _refusal
from spark_group_source.auth.oauth.http_post import Answer
from spark_group_source.auth.oauth.token_response import _holder
from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.sasl_exchange import authenticate
from spark_group_source.errors import BrokerUnavailable, DataLoss, GroupSourceError, OptionError
from spark_group_source.group.description import (
    GroupDescription,
    MemberDescription,
    interpret,
    interpret_consumer_group,
)
from spark_group_source.group.error_actions import fatal
from spark_group_source.lag.group_report import Snapshot, text
from spark_group_source.lag.model import LagReport, PartitionLag, Sample
from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.text import MOST_CHARACTERS, Secret, names, one_line, printable, quoted
from spark_group_source.wire import tcp
from spark_group_source.wire.identity import ClusterIdentity
from spark_group_source.wire.wire_options import WireOptions
from tests.unit.options.test_options import GOOD
from tests.unit.wire_options import after

EVIL = "no\n26/11/27 12:00:00 ERROR forged\r\x1b[31m\x07\N{RIGHT-TO-LEFT OVERRIDE}\x00\u2028\x85" + "x" * 100_000

PLAIN = Sasl("PLAIN", "alice", Secret("s3cret"))
CLIENT = ClientCredentials("https://idp/token", "orders", Secret("s3cret"))


def cluster_error(first: str, reported: str) -> str:
    try:
        ClusterIdentity(first).check(reported, "b:1")
    except GroupSourceError as error:
        return str(error)
    return "no error"


def sasl_error(*responses: Any) -> str:
    waiting = list(responses)
    try:
        authenticate(PLAIN, "host", "1 (host:9092)", lambda _: waiting.pop(0), after())
    except GroupSourceError as error:
        return str(error)
    return "no error"


def connect_error(host: str) -> str:
    try:
        tcp.connect(host, 0, WireOptions(((host, 1),)), after())
    except GroupSourceError as error:
        return str(error)
    return "no error"


def welcome(error_code: int = 0, mechanisms: tuple[str, ...] = ("PLAIN",)) -> Any:
    return SaslHandshakeResponse(version=1, error_code=error_code, mechanisms=list(mechanisms))


def member() -> SimpleNamespace:
    shared = {"member_id": EVIL, "client_id": EVIL, "client_host": f"/{EVIL}", "member_epoch": 1, "member_type": 1}
    of_classic = {"group_instance_id": EVIL, "member_metadata": b"", "member_assignment": b""}
    assignment = SimpleNamespace(topic_partitions=[])
    of_consumer = {"instance_id": EVIL, "assignment": assignment, "subscribed_topic_names": [EVIL]}
    return SimpleNamespace(**shared, **of_classic, **of_consumer, subscribed_topic_regex=EVIL)


def described() -> list[str]:
    classic = interpret(
        SimpleNamespace(protocol_type="consumer", members=[member()], group_state=EVIL, protocol_data=EVIL)
    )
    consumer = interpret_consumer_group(SimpleNamespace(members=[member()], group_state=EVIL, assignor_name=EVIL))
    found = [text for each in (classic, consumer) for text in (each.state, each.assignor)]
    for each in (*classic.members, *consumer.members):
        found += [each.member_id, each.client_id, each.host, each.instance_id or "", each.pattern]
    return found


def assigned_by_another() -> Snapshot:
    """A group whose leader, another member, assigned a topic with a forged name."""
    owner = MemberDescription("a", "a", "h", None, frozenset({TopicPartition(EVIL, 0)}))
    return Snapshot(GroupDescription("Stable", "range", (owner,)), Sample(0.0, {}, {}))


def refused(body: object) -> str:
    answer = Answer(401, json.dumps(body).encode(), "")
    return str(_refusal(CLIENT, answer, GroupSourceError))


SHOWN: dict[str, Callable[[], str]] = {
    "error of a sign-in": lambda: sasl_error(
        welcome(),
        SaslAuthenticateResponse(version=2, error_code=58, error_message=EVIL, auth_bytes=b"", session_lifetime_ms=0),
    ),
    "mechanisms of a broker": lambda: sasl_error(welcome(33, (EVIL, *[f"M{n}" for n in range(1000)]))),
    "explanation of a coordinator": lambda: str(fatal("JoinGroup", "g", 30, (), EVIL)),
    "advertised host": lambda: connect_error(EVIL),
    "id of another cluster": lambda: cluster_error("ours", EVIL),
    "id of the first cluster": lambda: cluster_error(EVIL, "theirs"),
    "topics": lambda: names([EVIL]),
    "partitions": lambda: names([TopicPartition(EVIL, 0)]),
    "partition": lambda: str(TopicPartition(EVIL, 0)),
    "range": lambda: str(OffsetRange(EVIL, 0, 1, 2)),
    "largest lag": lambda: str(LagReport("q", "", 0.0, (PartitionLag(TopicPartition(EVIL, 0), 1, 2),))),
    "assigned topic in a table": lambda: text(assigned_by_another().partitions("g")[1:]),
    "error of a token endpoint": lambda: refused({"error": EVIL, "error_description": EVIL}),
    "claims of a token": lambda: _holder({"sub": EVIL, "scope": [EVIL]}, "sub", "scope"),
}


@pytest.mark.parametrize("origin", SHOWN)
def test_a_text_of_others_is_one_bounded_line(origin: str) -> None:
    shown = SHOWN[origin]()
    assert "no\\n26/11/27" in shown
    assert shown.isprintable()
    assert len(shown) < 4 * MOST_CHARACTERS


def test_the_warning_of_another_cluster_is_one_bounded_line(caplog: pytest.LogCaptureFixture) -> None:
    cluster_error("ours", EVIL)
    assert caplog.messages[0].isprintable()
    assert len(caplog.messages[0]) < 3 * MOST_CHARACTERS


def test_the_description_of_a_group_has_bounded_lines() -> None:
    shown = described()
    assert len(shown) == 14
    assert all(each.isprintable() and len(each) <= MOST_CHARACTERS + 4 for each in shown)


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    error = GroupSourceError(f"It says {EVIL[:60]}", "Write\nthis")
    assert str(error).isprintable()
    assert error.action == "Write\\nthis"
    assert GroupSourceError(error.happened, error.action).happened == error.happened


def test_an_error_that_quotes_another_has_one_code_and_one_command() -> None:
    inner = DataLoss("It is gone.", "Look.")
    outer = BrokerUnavailable(f"No answer: {inner}.", f"Or: {inner}")
    assert outer.happened == "No answer: It is gone. Look."
    assert str(outer).count("[") == str(outer).count("For details") == 1
    assert str(outer).endswith("explain BROKER_UNAVAILABLE")


def test_an_option_is_quoted_up_to_a_length() -> None:
    with pytest.raises(OptionError) as raised:
        parse_options(GOOD | {"kafka.isolation.level": EVIL})
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 3 * MOST_CHARACTERS


def test_printable_keeps_a_text_that_is_fine_and_escapes_the_rest() -> None:
    assert printable("bücher 東京 \N{GRINNING FACE}") == "bücher 東京 \N{GRINNING FACE}"
    assert printable("a\tb\x1b\N{ZERO WIDTH SPACE}\udc80") == r"a\tb\x1b\u200b\udc80"
    assert printable("abcdef", 3) == "abc ..."
    assert one_line("a\nb") == r"a\nb"
    assert quoted("a'b\n") == repr("a'b\n")
    assert quoted("abcdef", 3) == "'abc' ... (6 characters)"
