"""Parses and checks the options of a source once, into frozen values.

Some defaults follow from other options, so that a default never conflicts with an option that the user sets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spark_group_source.auth.oauth.token import RefreshWindow
from spark_group_source.auth.pem import has_marker, is_base64_of_pem
from spark_group_source.auth.security_options import SecurityOptions
from spark_group_source.auth.security_settings import security_settings
from spark_group_source.auth.tls import Tls
from spark_group_source.errors import OptionError
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import numbers_by_topic
from spark_group_source.option import Option
from spark_group_source.options.checks import (
    ASSIGNED,
    TOPICS,
    check_group_protocol,
    check_required,
    check_settings,
    check_topics,
)
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.options.table import OPTIONS, PARTS, default_of
from spark_group_source.options.unsupported_names import unsupported_option
from spark_group_source.options.values import FOREVER, MAX_INT32
from spark_group_source.spelling import nearest
from spark_group_source.text import quoted
from spark_group_source.wire.wire_options import WireOptions

_RELATED = (
    ("group.heartbeat_interval", "group.session_timeout", 3),
    ("fetch.max_wait", "wire.request_timeout", 2),
    ("fetch.max_wait", "fetch.poll_timeout", 2),
    ("wire.retry_backoff", "wire.retry_backoff_max", 1),
    ("wire.reconnect_backoff", "wire.reconnect_backoff_max", 1),
    ("wire.connect_timeout", "wire.connect_timeout_max", 1),
)
"""The places of two options in seconds, and the minimum ratio of the second to the first."""

_IN_REQUESTS = ("group.session_timeout", "wire.request_timeout")
"""The places above whose milliseconds must fit into 32 bits."""


def with_derived_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, by place, plus a value for each option whose default conflicts with ``given``."""
    values = dict(given)
    for small, large, ratio in _RELATED:
        if small in given and large not in given:
            least = given[small] * ratio
            values[large] = min(max(_value(values, large), least), _maximum_seconds(large))
        elif large in given and small not in given:
            values[small] = min(_value(values, small), given[large] / ratio)
    return values


def _value(values: Mapping[str, Any], place: str) -> Any:
    """The value of an option, or its default."""
    return values.get(place, default_of(place))


def _maximum_seconds(place: str) -> float:
    if place in _IN_REQUESTS:
        return MAX_INT32 / 1000
    return FOREVER


_BY_KEY = {option.name.lower(): option for option in OPTIONS}


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parses and checks the options of a source.

    Raises:
        OptionError: an option is unknown, unsupported, missing or invalid; the message says what to write instead.
    """
    values: dict[str, Any] = {}
    for key, text in given.items():
        option = _BY_KEY.get(key.lower())
        if option is None:
            raise _not_an_option(key)
        values[option.place] = _parsed(option, text)
    check_required(values)
    check_topics(values)
    check_group_protocol(values)
    options = _settings(with_derived_defaults(values))
    check_settings(options)
    return options


_PEM = (
    "Set PEM text in 'kafka.ssl.truststore.certificates', 'kafka.ssl.keystore.key' or"
    " 'kafka.ssl.keystore.certificate.chain'."
)
_PEM_IN_BASE64 = "Decode it. " + _PEM
_HIDDEN = "has an invalid value, which is not shown because it may contain a secret"
_SECRET = re.compile(
    r"password|passwd|pwd=|secret|PRIVATE.?KEY|(?:access|account|api)[_.-]?key|LoginModule|Bearer |@|eyJ[\w-]{8}",
    re.IGNORECASE,
)
"""Matches a value that may contain a secret in the wrong option: a JAAS config, a URL with a password, a token, a
private key, or a connection string of Azure, which ends with a ``SharedAccessKey``."""


def _parsed(option: Option, text: str) -> Any:
    """The value of an option. An error shows the text unless it may contain a secret."""
    if not option.secret:
        _check_no_pem(option.name, text)
    try:
        return option.parse(text)
    except ValueError as error:
        expected = str(error)
    problem = f"is {quoted(text)}"
    if option.secret:
        problem = _HIDDEN
    elif _SECRET.search(text):
        problem = _HIDDEN
        expected = expected.partition(" (")[0]  # the parentheses quote the value
    raise OptionError(f"Option '{option.name}' {problem}.", f"It must be {expected}.")


def _check_no_pem(name: str, text: str) -> None:
    """Rejects PEM in an option that may not hold it. Otherwise an option for a path accepts a private key, and the
    error for the missing file shows it."""
    if has_marker(text):
        raise OptionError(f"Option '{name}' contains PEM text, which is not shown.", _PEM)
    if is_base64_of_pem(text):
        raise OptionError(f"Option '{name}' contains the base64 of PEM text, which is not shown.", _PEM_IN_BASE64)


def _not_an_option(key: str) -> OptionError:
    """The error for a name that no option has. The error does not show the value, which may be a secret."""
    unsupported = unsupported_option(key)
    if unsupported is not None:
        return unsupported
    action = "Remove it, or choose one of the options in docs/options.md."
    name = nearest(key, [option.name for option in OPTIONS])
    if name is not None:
        action = f"Did you mean '{name}'?"
    return OptionError(f"Option {quoted(key)} is unknown.", action)


_FIRST_AND_MAXIMUM = (
    ("wire.retry_backoff", "wire.retry_backoff_max"),
    ("wire.reconnect_backoff", "wire.reconnect_backoff_max"),
    ("wire.connect_timeout", "wire.connect_timeout_max"),
    ("oauth.retry_backoff", "oauth.retry_backoff_max"),
)
"""The places of a first backoff or timeout and of its maximum."""


def _settings(values: dict[str, Any]) -> SourceOptions:
    """The settings with these values, by place, and with defaults for all others."""
    given = _names_without_default(values)
    # A first backoff above the maximum is the maximum, as in Kafka's Java client.
    for first, maximum in _FIRST_AND_MAXIMUM:
        values[first] = min(_value(values, first), _value(values, maximum))
    if ASSIGNED in values:
        values[TOPICS] = tuple(numbers_by_topic(values[ASSIGNED]))
    parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for place, value in values.items():
        part, _, field = place.rpartition(".")
        parts[part][field] = value
    security = SecurityOptions(
        tls=Tls(**parts["tls"]),
        oauth=parts["oauth"] | {"window": RefreshWindow(**parts["oauth.window"])},
        given=given,
        **parts["security"],
    )
    tls, sasl = security_settings(security, parts["wire"]["bootstrap_servers"])
    subscription = Subscription(**parts["group.subscription"])
    wire = WireOptions(**parts["wire"], tls=tls, sasl=sasl)
    group = GroupSettings(**{"group_id": ""} | parts["group"], subscription=subscription, wire=wire)
    return SourceOptions(group=group, fetch=FetchSettings(**parts["fetch"]), **parts[""])


def _names_without_default(values: Mapping[str, Any]) -> list[str]:
    """The names of the options whose value differs from the default, in the order of the table."""
    names = []
    for option in OPTIONS:
        value = values.get(option.place)
        if value is not None and value != default_of(option.place):
            names.append(option.name)
    return names
