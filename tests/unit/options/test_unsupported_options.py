"""The error for an unsupported option has the reason and the alternative."""

from __future__ import annotations

import re

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.table import OPTIONS
from spark_group_source.options.unsupported import UNSUPPORTED

GOOD = {"kafka.bootstrap.servers": "b1:9092", "kafka.group.id": "g", "subscribe": "t"}
KNOWN = {option.name.lower() for option in OPTIONS}


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("kafka.enable.auto.commit", "Remove it"),
        ("enable.auto.commit", "Remove it"),
        ("auto_commit_interval_ms", "trigger"),
        ("kafka.auto.offset.reset", "startingOffsets"),
        ("kafka.key.deserializer", "from_json"),
        ("zk_hosts", "kafka.bootstrap.servers"),
        ("use_rdkafka", "Remove it"),
        ("kafka.api.version", "Remove it"),
        ("commitMode", "offsetCommit.timeoutMs"),
        ("commitOffsets", "format('kafka')"),
        ("groupRebalance.numRetries", "kafka.retry.backoff.ms"),
        ("rebalanceDrainTimeoutMs", "kafka.max.poll.interval.ms"),
        ("kafka.exclude.internal.topics", "includeInternalTopics"),
        ("path", "subscribe"),
    ],
)
def test_the_error_for_an_option_of_other_clients_names_the_alternative(key: str, instead: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_options(GOOD | {key: "s3cret"})
    assert f"'{key}' is not supported" in str(raised.value)
    assert instead in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_no_unsupported_name_is_an_option_and_every_alternative_is_one() -> None:
    assert not KNOWN & {prefix + name for name in UNSUPPORTED for prefix in ("", "kafka.")}
    named = {name for _, instead in UNSUPPORTED.values() for name in re.findall(r"'([A-Za-z.]{6,})'", instead)}
    assert {name.lower() for name in named - {"string"}} <= KNOWN
