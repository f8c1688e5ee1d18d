"""Checks between the options that a user has set: which of them contradict each other or have no effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from spark_group_source.errors import OptionError
from spark_group_source.options.offset_specs import AtTimestamp, FromCommitted, StartSpec
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.options.table import OPTIONS

_NAMES = {option.place: f"'{option.name}'" for option in OPTIONS}


TOPICS, _PATTERN, ASSIGNED = (f"group.subscription.{field}" for field in ("topics", "pattern", "partitions"))


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


def check_required(given: Collection[str]) -> None:
    """``given`` are the places of the options that the user has set."""
    for option in OPTIONS:
        if option.required and option.place not in given:
            action = f"Set it with .option('{option.name}', ...): {option.description}"
            raise OptionError(f"Option '{option.name}' is missing.", action)


def check_topics(given: Collection[str]) -> None:
    """``given`` are the places of the options that the user has set."""
    topic_options = [_NAMES[place] for place in (TOPICS, _PATTERN, ASSIGNED) if place in given]
    if len(topic_options) != 1:
        raise OptionError(
            f"Options {' and '.join(topic_options)} are set." if topic_options else "No option names a topic.",
            "Set exactly one of 'subscribe' (topic names), 'subscribePattern' (a regular expression) and 'assign'"
            " (partitions to read without group membership).",
        )
    without_effect = [_NAMES[place] for place in _OF_MEMBER if place in given and ASSIGNED in given]
    if without_effect:
        raise OptionError(
            f"Options 'assign' and {', '.join(without_effect)} are set.",
            "With 'assign' the query is not a member of the group: remove the other options, or name topics with"
            " 'subscribe'.",
        )


def check_group_protocol(values: Mapping[str, Any]) -> None:
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


def check_settings(options: SourceOptions) -> None:
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
    _check_start(
        options.starting_offsets,
        options.starting_offsets_fallback,
        options.starting_timestamp or options.starting_offsets_by_timestamp,
        options.reset_offsets_on_start,
    )


def _check_start(
    given: StartSpec | None, fallback: FromCommitted | None, time: AtTimestamp | None, reset: bool
) -> None:
    """Checks the options that depend on ``startingOffsets`` (``given``).

    Args:
        fallback: ``startingOffsetsFallback``, if set.
        time: the start time, if set.
        reset: ``resetOffsetsOnStart``.

    Raises:
        OptionError: one of them contradicts ``given``.
    """
    if not isinstance(given, FromCommitted):
        if fallback is not None:
            raise OptionError(
                "Option 'startingOffsetsFallback' is set, and 'startingOffsets' is not committed.",
                "Remove it, because a stream starts partitions without a committed offset at 'startingOffsets'. Or set"
                " 'startingOffsets' to committed.",
            )
        return
    if time is not None:
        raise OptionError(
            f"Option '{time.option}' is set, and 'startingOffsets' is committed.",
            "Remove one of them. In a stream committed offsets always take precedence.",
        )
    if reset:
        raise OptionError(
            "Option 'resetOffsetsOnStart' is true, and 'startingOffsets' is committed.",
            "Set 'startingOffsets' to the new start: earliest, latest or JSON offsets.",
        )
