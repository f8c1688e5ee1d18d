"""Parses and checks the options of a source once, into frozen values.

Some defaults follow from other options, so that a default never conflicts with an option that the user sets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from spark_group_source.errors import OptionError
from spark_group_source.fetch.settings import FetchSettings
from spark_group_source.group.settings import GroupSettings, Subscription
from spark_group_source.offsets import numbers_by_topic
from spark_group_source.options.near_names import nearest
from spark_group_source.options.offsets import check_start
from spark_group_source.options.security import SecurityOptions, security_settings
from spark_group_source.options.settings import SourceOptions
from spark_group_source.options.table import OPTIONS, PARTS, default_of
from spark_group_source.options.unsupported import unsupported_option
from spark_group_source.options.values import FOREVER, MAX_INT32, Option
from spark_group_source.text import quoted
from spark_group_source.wire.settings import Tls, WireOptions
from spark_group_source.wire.tokens import RefreshWindow

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
    _check_required(values)
    _check_topics(values)
    _check_group_protocol(values)
    options = _settings(with_derived_defaults(values))
    _check(options)
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


def _check_required(given: Collection[str]) -> None:
    """``given`` are the places of the options that the user has set."""
    for option in OPTIONS:
        if option.required and option.place not in given:
            action = f"Set it with .option('{option.name}', ...): {option.description}"
            raise OptionError(f"Option '{option.name}' is missing.", action)


def _unknown(key: str) -> OptionError:
    name = nearest(key, (option.name for option in OPTIONS))
    # The message does not show the value: an unknown option may be a secret.
    return OptionError(f"Option {quoted(key)} is unknown.", f"Did you mean '{name}'?" if name else _PAGE)


_NAMES = {option.place: f"'{option.name}'" for option in OPTIONS}
_TOPICS, _PATTERN, _ASSIGNED = (f"group.subscription.{field}" for field in ("topics", "pattern", "partitions"))
_CLASSIC = ("group.assignors", "group.session_timeout", "group.heartbeat_interval")
_REMOTE_ASSIGNOR = "group.remote_assignor"
_OF_MEMBER = (
    "group.instance_id",
    "group.static_leaves",
    "group.consumer_protocol",
    _REMOTE_ASSIGNOR,
    *_CLASSIC,
    "group.rebalance_timeout",
)


def _check_topics(given: Collection[str]) -> None:
    """``given`` are the places of the options that the user has set."""
    topic_options = [_NAMES[place] for place in (_TOPICS, _PATTERN, _ASSIGNED) if place in given]
    if len(topic_options) != 1:
        raise OptionError(
            f"Options {' and '.join(topic_options)} are set." if topic_options else "No option names a topic.",
            "Set exactly one of 'subscribe' (topic names), 'subscribePattern' (a regular expression) and 'assign'"
            " (partitions to read without group membership).",
        )
    without_effect = [_NAMES[place] for place in _OF_MEMBER if place in given and _ASSIGNED in given]
    if without_effect:
        raise OptionError(
            f"Options 'assign' and {', '.join(without_effect)} are set.",
            "With 'assign' the query is not a member of the group: remove the other options, or name topics with"
            " 'subscribe'.",
        )


def _check_group_protocol(values: Mapping[str, Any]) -> None:
    """``values`` are those that the user has set, by place."""
    if values.get("group.consumer_protocol"):
        without_effect = [_NAMES[place] for place in _CLASSIC if place in values]
        action = (
            "With the group protocol consumer the brokers assign partitions, and have the timeouts"
            " (group.consumer.session.timeout.ms, group.consumer.heartbeat.interval.ms). Remove these options. Choose"
            " an assignor of the brokers with 'kafka.group.remote.assignor'."
        )
        protocol = "consumer"
    else:
        without_effect = [_NAMES[_REMOTE_ASSIGNOR]] if _REMOTE_ASSIGNOR in values else []
        action = (
            "In the classic group protocol the group's leader assigns partitions: set"
            " 'kafka.partition.assignment.strategy' instead, or set 'kafka.group.protocol' to consumer."
        )
        protocol = "classic"
    if without_effect:
        raise OptionError(f"Option {', '.join(without_effect)} has no effect with the protocol {protocol}.", action)


_FIRST_AND_MAXIMUM = [(small, large) for small, large, ratio in _RELATED if ratio == 1]
_FIRST_AND_MAXIMUM += [("oauth.retry_backoff", "oauth.retry_backoff_max")]


def _settings(values: dict[str, Any]) -> SourceOptions:
    """The settings with these values, which are by place, and the defaults."""
    given = [option.name for option in OPTIONS if values.get(option.place) not in (None, default_of(option.place))]
    # A first backoff above the maximum is the maximum, as in Kafka's Java client.
    for small, large in _FIRST_AND_MAXIMUM:
        values[small] = min(values.get(small, default_of(small)), values.get(large, default_of(large)))
    if _ASSIGNED in values:
        values[_TOPICS] = tuple(numbers_by_topic(values[_ASSIGNED]))
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


def _check(options: SourceOptions) -> None:
    group, fetch, wire = options.group, options.fetch, options.wire
    if group.heartbeat_interval >= group.session_timeout:
        raise OptionError(
            f"Option 'kafka.heartbeat.interval.ms' is {group.heartbeat_interval * 1000:.0f}, and"
            f" 'kafka.session.timeout.ms' is {group.session_timeout * 1000:.0f}.",
            "The session would expire before the next heartbeat. Set the interval to a third of the timeout, or remove"
            " it.",
        )
    if fetch.max_wait >= wire.request_timeout:
        raise OptionError(
            f"Option 'kafka.fetch.max.wait.ms' is {fetch.max_wait * 1000:.0f}, and 'kafka.request.timeout.ms'"
            f" is {wire.request_timeout * 1000:.0f}.",
            "A fetch would time out before the broker responds: lower the first or raise the second.",
        )
    minimum, maximum = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if minimum is not None and maximum is not None and minimum > maximum:
        raise OptionError(
            f"Option 'minOffsetsPerTrigger' is {minimum}, more than 'maxOffsetsPerTrigger' ({maximum}).",
            "No batch can satisfy both limits: lower the first or raise the second.",
        )
    check_start(
        options.starting_offsets,
        options.starting_offsets_fallback,
        options.starting_timestamp or options.starting_offsets_by_timestamp,
        options.reset_offsets_on_start,
    )
