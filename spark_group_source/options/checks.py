"""Checks between the options that a user has set: options that contradict each other, or have no effect.

All raise :class:`OptionError`. The places are those of the table of options.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from spark_group_source.errors import OptionError
from spark_group_source.options.offset_specs import FromCommitted
from spark_group_source.options.source_options import SourceOptions, start_time
from spark_group_source.options.table import OPTIONS

_NAMES = {option.place: f"'{option.name}'" for option in OPTIONS}

TOPICS = "group.subscription.topics"
PATTERN = "group.subscription.pattern"
ASSIGNED = "group.subscription.partitions"


def check_required(given: Collection[str]) -> None:
    """Checks that every required option is set. ``given`` are the places of the options that the user has set."""
    for option in OPTIONS:
        if option.required and option.place not in given:
            action = f"Set it with .option('{option.name}', ...): {option.description}"
            raise OptionError(f"Option '{option.name}' is missing.", action)


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


def check_topics(given: Collection[str]) -> None:
    """Checks that exactly one option names topics, and that no option of a member is set with ``assign``.

    ``given`` are the places of the options that the user has set.
    """
    _check_one_topic_option(_names_of((TOPICS, PATTERN, ASSIGNED), given))
    if ASSIGNED not in given:
        return
    without_effect = _names_of(_OF_MEMBER, given)
    if without_effect:
        raise OptionError(
            f"Options 'assign' and {', '.join(without_effect)} are set.",
            "With 'assign' the query is not a member of the group. Remove the other options, or name topics with"
            " 'subscribe' instead.",
        )


def _names_of(places: Iterable[str], given: Collection[str]) -> list[str]:
    """The quoted names of the options with these places that the user has set."""
    return [_NAMES[place] for place in places if place in given]


def _check_one_topic_option(topic_options: list[str]) -> None:
    if len(topic_options) == 1:
        return
    happened = "No option names a topic."
    if topic_options:
        happened = f"Options {' and '.join(topic_options)} are set."
    raise OptionError(
        happened,
        "Set exactly one of 'subscribe' (topic names), 'subscribePattern' (a regular expression) and 'assign'"
        " (partitions to read without group membership).",
    )


def check_group_protocol(values: Mapping[str, Any]) -> None:
    """Checks that no option of the other group protocol is set. ``values`` are those of the user, by place."""
    if values.get("group.consumer_protocol"):
        protocol = "consumer"
        without_effect = _names_of(_CLASSIC, values)
        action = (
            "With the group protocol consumer the brokers assign partitions, and their configuration contains the"
            " timeouts (group.consumer.session.timeout.ms, group.consumer.heartbeat.interval.ms). Remove these"
            " options. To choose an assignor of the brokers, set 'kafka.group.remote.assignor'."
        )
    else:
        protocol = "classic"
        without_effect = _names_of([_REMOTE_ASSIGNOR], values)
        action = (
            "With the group protocol classic the group's leader assigns partitions. Set"
            " 'kafka.partition.assignment.strategy' instead, or set 'kafka.group.protocol' to consumer."
        )
    if without_effect:
        raise OptionError(_has_no_effect(without_effect, protocol), action)


def _has_no_effect(names: Sequence[str], protocol: str) -> str:
    reason = f"with 'kafka.group.protocol' {protocol}"
    if len(names) == 1:
        return f"Option {names[0]} has no effect {reason}."
    return f"Options {', '.join(names[:-1])} and {names[-1]} have no effect {reason}."


def check_settings(options: SourceOptions) -> None:
    """Checks that the values fit together, whether the user has set them or they are defaults."""
    _check_timeouts(options)
    _check_batch_limits(options)
    if isinstance(options.starting_offsets, FromCommitted):
        _check_committed_start(options)
    elif options.starting_offsets_fallback is not None:
        raise OptionError(
            "Option 'startingOffsetsFallback' is set, but 'startingOffsets' is not set to committed.",
            "Set 'startingOffsets' to committed. Or remove 'startingOffsetsFallback': a stream then starts partitions"
            " without a committed offset at 'startingOffsets'.",
        )


def _check_timeouts(options: SourceOptions) -> None:
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


def _check_batch_limits(options: SourceOptions) -> None:
    minimum, maximum = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if minimum is None or maximum is None:
        return
    if minimum > maximum:
        raise OptionError(
            f"Option 'minOffsetsPerTrigger' is {minimum}, more than 'maxOffsetsPerTrigger' ({maximum}).",
            "No batch can satisfy both limits: lower the first or raise the second.",
        )


def _check_committed_start(options: SourceOptions) -> None:
    time = start_time(options)
    if time is not None:
        raise OptionError(
            f"Option '{time.option}' is set, and 'startingOffsets' is committed.",
            "Remove one of them. In a stream committed offsets always take precedence.",
        )
    if options.reset_offsets_on_start:
        raise OptionError(
            "Option 'resetOffsetsOnStart' is true, and 'startingOffsets' is committed.",
            "Set 'startingOffsets' to the new start: earliest, latest or JSON offsets.",
        )
