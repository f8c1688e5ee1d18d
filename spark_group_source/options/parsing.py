"""A source's options as given to Spark, read and checked once into frozen values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from spark_group_source.errors import OptionError
from spark_group_source.offsets import numbers_by_topic
from spark_group_source.options.derived_defaults import with_derived_defaults
from spark_group_source.options.offset_specs import check_start
from spark_group_source.options.security import check_security
from spark_group_source.options.table import OPTIONS, SourceOptions
from spark_group_source.options.unsupported import unsupported_option

_PEM = "It belongs into 'kafka.ssl.truststore.certificates', 'kafka.ssl.keystore.key' or '...certificate.chain'."
_SECRET = re.compile(r"password|secret|LoginModule|:[^,/]*@", re.IGNORECASE)
"""What a text has that may hold a secret in the wrong place: login lines, URLs with a password."""
_BY_KEY = {option.name.lower(): option for option in OPTIONS}


def _spelled(name: str) -> str:
    """A name without what is often written otherwise: ``group_id`` is near to ``kafka.group.id``."""
    return name.lower().replace("_", ".").removeprefix("kafka.")


_BY_SPELLING = {_spelled(option.name): option for option in OPTIONS}


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Reads and checks a source's options.

    Raises:
        OptionError: an option is unknown, refused, missing or has a bad value; the message says what to write instead.
    """
    values: dict[str, Any] = {}
    for key, text in given.items():
        option = _BY_KEY.get(key.lower())
        if option is None:
            raise unsupported_option(key) or _unknown(key)
        if "-----BEGIN " in text and not option.secret:
            raise OptionError(f"Option '{option.name}' holds PEM text, which is not shown.", _PEM)
        try:
            values[option.field] = option.parse(text)
        except ValueError as error:
            shown, needed = repr(text), str(error)
            if option.secret:
                shown = "not what is needed"
            elif _SECRET.search(text):
                # In parentheses stands what is wrong, in the words of the text.
                shown, needed = "not what is needed", needed.partition(" (")[0]
            raise OptionError(f"Option '{option.name}' is {shown}.", f"It must be {needed}.") from None
    for option in OPTIONS:
        if option.required and option.field not in values:
            raise OptionError(
                f"Option '{option.name}' is missing.", f"Give it with .option('{option.name}', ...): {option.doc}"
            )
    _check_topics(values)
    return _checked(SourceOptions(**with_derived_defaults(values)))


def _unknown(key: str) -> OptionError:
    near = difflib.get_close_matches(_spelled(key), _BY_SPELLING, n=1, cutoff=0.6)
    # The value is left out: an option that is not known may be a secret.
    known = ", ".join(option.name for option in OPTIONS)
    action = f"Did you mean '{_BY_SPELLING[near[0]].name}'?" if near else f"Known are: {known}."
    return OptionError(f"Option '{key}' is not known.", action)


_WAYS = ("topics", "topic_pattern", "partitions")
_OF_MEMBERS = (
    "group_instance_id",
    "leave_on_stop",
    "assignors",
    "session_timeout",
    "heartbeat_interval",
    "max_poll_interval",
)


def _check_topics(given: Collection[str]) -> None:
    """``given`` are the fields that options were given for."""
    names = {option.field: f"'{option.name}'" for option in OPTIONS}
    ways = [names[field] for field in _WAYS if field in given]
    if len(ways) != 1:
        raise OptionError(
            f"Options {' and '.join(ways)} are given." if ways else "No topic is named.",
            "Give exactly one of 'subscribe' (topic names), 'subscribePattern' (an expression) and 'assign' (partitions"
            " to read without being a member of the group).",
        )
    without_effect = [names[field] for field in _OF_MEMBERS if field in given and "partitions" in given]
    if without_effect:
        raise OptionError(
            f"Options 'assign' and {', '.join(without_effect)} are given.",
            "What is assigned is read without being a member, so there is no session and nothing to hand over: leave"
            " the others out, or name topics with 'subscribe'.",
        )


def _checked(options: SourceOptions) -> SourceOptions:
    if options.heartbeat_interval >= options.session_timeout:
        raise OptionError(
            f"Option 'kafka.heartbeat.interval.ms' is {options.heartbeat_interval * 1000:.0f}, and"
            f" 'kafka.session.timeout.ms' {options.session_timeout * 1000:.0f}.",
            "The session would end before the next heartbeat. Set the interval to a third of the timeout, or leave it"
            " out.",
        )
    if options.fetch_max_wait >= options.request_timeout:
        raise OptionError(
            f"Option 'kafka.fetch.max.wait.ms' is {options.fetch_max_wait * 1000:.0f}, and 'kafka.request.timeout.ms'"
            f" {options.request_timeout * 1000:.0f}.",
            "A fetch that brokers hold back would be given up before they answer: lower the first or raise the second.",
        )
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"Option 'minOffsetsPerTrigger' is {least}, more than 'maxOffsetsPerTrigger' ({most}).",
            "No batch could ever be large enough and small enough: lower the first or raise the second.",
        )
    check_security(options)
    check_start(
        options.starting_offsets,
        options.starting_offsets_fallback,
        options.starting_timestamp or options.starting_offsets_by_timestamp,
        options.reset_offsets_on_start,
    )
    # A first pause beyond the longest is the longest, as in Kafka's own client.
    return replace(
        options,
        topics=options.topics or tuple(numbers_by_topic(options.partitions)),
        retry_backoff=min(options.retry_backoff, options.retry_backoff_max),
        reconnect_backoff=min(options.reconnect_backoff, options.reconnect_backoff_max),
        connect_timeout=min(options.connect_timeout, options.connect_timeout_max),
    )
