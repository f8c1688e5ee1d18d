"""Parses and checks the options of a source once, into frozen values.

Some defaults follow from other options, so that a default never conflicts with an option that the user sets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spark_group_source.auth.oauth.token import RefreshWindow
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
            maximum = MAX_INT32 / 1000 if large in _IN_REQUESTS else FOREVER
            values[large] = min(max(values.get(large, default_of(large)), given[small] * ratio), maximum)
        elif large in given and small not in given:
            values[small] = min(values.get(small, default_of(small)), given[large] / ratio)
    return values


_PEM = (
    "Set PEM text in 'kafka.ssl.truststore.certificates', 'kafka.ssl.keystore.key' or"
    " 'kafka.ssl.keystore.certificate.chain'."
)


_HIDDEN = "has an invalid value, which is not shown because it may contain a secret"


_SECRET = re.compile(r"password|secret|LoginModule|@|eyJ[\w-]{8}", re.IGNORECASE)
"""Matches a value that may contain a secret in the wrong option: a JAAS config, a URL with a password, a token."""


_BY_KEY = {option.name.lower(): option for option in OPTIONS}


_PAGE = "Remove it, or choose one of the options in docs/options.md."


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parses and checks the options of a source.

    Raises:
        OptionError: an option is unknown, unsupported, missing or invalid; the message says what to write instead.
    """
    values: dict[str, Any] = {}
    for key, text in given.items():
        option = _BY_KEY.get(key.lower())
        if option is None:
            raise unsupported_option(key) or _unknown(key)
        values[option.place] = _parsed(option, text)
    check_required(values)
    check_topics(values)
    check_group_protocol(values)
    options = _settings(with_derived_defaults(values))
    check_settings(options)
    return options


def _parsed(option: Option, text: str) -> Any:
    """The value of an option. An error shows the text unless it may contain a secret."""
    if "-----BEGIN " in text and not option.secret:
        raise OptionError(f"Option '{option.name}' contains PEM text, which is not shown.", _PEM)
    try:
        return option.parse(text)
    except ValueError as error:
        problem, expected = f"is {quoted(text)}", str(error)
    if option.secret:
        problem = _HIDDEN
    elif _SECRET.search(text):
        # The parentheses quote the value.
        problem, expected = _HIDDEN, expected.partition(" (")[0]
    raise OptionError(f"Option '{option.name}' {problem}.", f"It must be {expected}.")


def _unknown(key: str) -> OptionError:
    name = nearest(key, (option.name for option in OPTIONS))
    # The message does not show the value: an unknown option may be a secret.
    return OptionError(f"Option {quoted(key)} is unknown.", f"Did you mean '{name}'?" if name else _PAGE)


_FIRST_AND_MAXIMUM = (
    ("wire.retry_backoff", "wire.retry_backoff_max"),
    ("wire.reconnect_backoff", "wire.reconnect_backoff_max"),
    ("wire.connect_timeout", "wire.connect_timeout_max"),
    ("oauth.retry_backoff", "oauth.retry_backoff_max"),
)
"""The places of a first backoff or timeout and of its maximum."""


def _settings(values: dict[str, Any]) -> SourceOptions:
    """The settings with these values, which are by place, and the defaults."""
    given = [option.name for option in OPTIONS if values.get(option.place) not in (None, default_of(option.place))]
    # A first backoff above the maximum is the maximum, as in Kafka's Java client.
    for small, large in _FIRST_AND_MAXIMUM:
        values[small] = min(values.get(small, default_of(small)), values.get(large, default_of(large)))
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
