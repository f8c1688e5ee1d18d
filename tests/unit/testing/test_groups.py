"""Parsing of what kafka-consumer-groups prints. The samples are its output, of Kafka 4.1.1."""

from __future__ import annotations

import re

from spark_group_source.testing.rows import GroupMember, GroupPartition, parse_members, parse_partitions

WITH_OWNER = """
GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID                                    HOST            CLIENT-ID
g 1             t               3          2513            2613            100             my client-c7198d97-119c-4b96-ae9e-878168e1fe99 /127.0.0.1      my client
g 1             t               0          -               2526            -               my client-c7198d97-119c-4b96-ae9e-878168e1fe99 /127.0.0.1      my client
"""  # noqa: E501

WITHOUT_MEMBERS = """
Consumer group 'g 1' has no active members.

GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID     HOST            CLIENT-ID
g 1             t               3          2513            2513            0               -               -               -
"""  # noqa: E501

MEMBERS = """
GROUP           CONSUMER-ID                                    HOST            CLIENT-ID       #PARTITIONS     CURRENT-EPOCH   CURRENT-ASSIGNMENT   TARGET-EPOCH    TARGET-ASSIGNMENT
g 1             my client-c7198d97-119c-4b96-ae9e-878168e1fe99 /127.0.0.1      my client       4               -               t:0,1,2,3            -               -
"""  # noqa: E501

CONSUMER = "my client-c7198d97-119c-4b96-ae9e-878168e1fe99"


def test_partitions_are_sorted_and_keep_blanks_in_names() -> None:
    assert parse_partitions(WITH_OWNER) == [
        GroupPartition("t", 0, None, 2526, None, CONSUMER, "my client"),
        GroupPartition("t", 3, 2513, 2613, 100, CONSUMER, "my client"),
    ]


def test_a_group_without_members_has_offsets_and_no_owner() -> None:
    assert parse_partitions(WITHOUT_MEMBERS) == [GroupPartition("t", 3, 2513, 2513, 0, None, None)]


def test_members_have_the_number_of_their_partitions() -> None:
    assert parse_members(MEMBERS) == [GroupMember(CONSUMER, "my client", 4)]


def test_output_without_a_table_has_no_rows() -> None:
    assert parse_partitions("") == []
    assert parse_members("Consumer group 'g 1' has no active members.") == []


def test_a_member_without_partitions_has_no_line() -> None:
    *head, line = WITHOUT_MEMBERS.splitlines()
    idle = re.sub(r"\S+(?= |$)", lambda word: "-".ljust(len(word[0])), line)
    assert parse_partitions("\n".join([*head, idle])) == []
