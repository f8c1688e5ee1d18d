"""Defaults derive from the options that the user sets."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_group_source.options import values
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.settings import SourceOptions
from spark_group_source.options.table import OPTIONS
from spark_group_source.options.values import Option
from tests.unit.options.test_options import GOOD

LARGEST = 2**31 - 1
NUMBERS: dict[Callable[[str], Any], tuple[int, int]] = {
    values.milliseconds: (1, LARGEST - 1),  # some need another that is longer
    values.duration: (0, 10**12 - 1),
    values.byte_size: (1024, LARGEST),
    values.byte_count: (0, LARGEST),
    values.socket_buffer_size: (1, LARGEST),
    values.positive_count: (1, 10**18 - 1),
    values.retry_count: (0, 10**9 - 1),
}
"""The minimum and maximum of each parser of numbers."""

NUMBER_OPTIONS = [each for each in OPTIONS if each.parse in NUMBERS and not each.name.startswith("kafka.sasl.")]
BACKOFFS = [
    ("kafka.retry.backoff", "retry_backoff"),
    ("kafka.reconnect.backoff", "reconnect_backoff"),
    ("kafka.socket.connection.setup.timeout", "connect_timeout"),
]


def seconds(parsed: SourceOptions, *places: str) -> tuple[float, ...]:
    return tuple(attrgetter(each)(parsed) for each in places)


@pytest.mark.parametrize("option", NUMBER_OPTIONS, ids=lambda option: option.name)
@given(data=st.data())
def test_a_single_option_accepts_and_keeps_each_valid_value(option: Option, data: st.DataObject) -> None:
    text = str(data.draw(st.integers(*NUMBERS[option.parse])))
    parsed = parse_options(GOOD | {option.name: text})
    assert attrgetter(option.place)(parsed) == option.parse(text)
    assert parsed.group.revocation_timeout > 0


@pytest.mark.parametrize(
    ("given_ms", "heartbeat", "session"),
    [
        ({}, 3.0, 45.0),
        ({"session.timeout": "6000"}, 2.0, 6.0),
        ({"session.timeout": "9000"}, 3.0, 9.0),
        ({"session.timeout": "120000"}, 3.0, 120.0),
        ({"heartbeat.interval": "1000"}, 1.0, 45.0),
        ({"heartbeat.interval": "20000"}, 20.0, 60.0),
        ({"heartbeat.interval": "3000", "session.timeout": "6000"}, 3.0, 6.0),
    ],
)
def test_heartbeat_interval_and_session_timeout_derive_from_each_other(
    given_ms: dict[str, str], heartbeat: float, session: float
) -> None:
    parsed = parse_options(GOOD | {f"kafka.{name}.ms": text for name, text in given_ms.items()})
    assert seconds(parsed, "group.heartbeat_interval", "group.session_timeout") == (heartbeat, session)


@pytest.mark.parametrize(
    ("given_ms", "wait", "answer", "poll"),
    [
        ({}, 0.5, 30.0, 120.0),
        ({"kafka.fetch.max.wait.ms": "30000"}, 30.0, 60.0, 120.0),
        ({"kafka.fetch.max.wait.ms": "100000"}, 100.0, 200.0, 200.0),
        ({"kafka.request.timeout.ms": "400"}, 0.2, 0.4, 120.0),
        ({"kafka.request.timeout.ms": "400", "kafkaConsumer.pollTimeoutMs": "200"}, 0.1, 0.4, 0.2),
    ],
)
def test_fetch_wait_and_request_timeout_derive_from_each_other(
    given_ms: dict[str, str], wait: float, answer: float, poll: float
) -> None:
    places = ("fetch.max_wait", "wire.request_timeout", "fetch.poll_timeout")
    assert seconds(parse_options(GOOD | given_ms), *places) == (wait, answer, poll)


@pytest.mark.parametrize(("name", "field"), BACKOFFS)
def test_first_and_maximum_backoff_derive_from_each_other(name: str, field: str) -> None:
    fields = (f"wire.{field}", f"wire.{field}_max")
    assert seconds(parse_options(GOOD | {f"{name}.ms": "60000"}), *fields) == (60.0, 60.0)
    assert seconds(parse_options(GOOD | {f"{name}.max.ms": "10"}), *fields) == (0.01, 0.01)
