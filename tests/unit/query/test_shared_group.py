"""Several members of one application in a group."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from spark_group_source.group.description import MemberDescription
from spark_group_source.offsets import BatchOffset
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.driver import Driver, other_client_ids
from tests.fake import FakeKafka, Fault

OWN = "app-t-local-1-77"
SHARED = "members of this application share this group"


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("t")
        yield running


def started(fake: FakeKafka, application_id: str = "local-1") -> None:
    """Starts and closes a query."""
    given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": "g", "subscribe": "t"}
    options = parse_options(given)
    with closing(Driver(options.with_client_id(OWN), application_id=application_id)) as driver:
        driver.start(BatchOffset())
        driver.await_assignment()


def of_members(*client_ids: str) -> Fault:
    """Makes DescribeGroups return these."""

    def edit(answer: Any) -> None:
        (group,) = answer.groups
        (first,) = group.members
        group.members = [copy.copy(first) for _ in client_ids]
        for member, client_id in zip(group.members, client_ids, strict=True):
            member.client_id = client_id

    return Fault(edit=edit)


def test_members_of_the_same_application_have_its_id_in_their_client_id() -> None:
    members = [MemberDescription("m", each, "h") for each in (OWN, "app-u-local-1-78", "app-t-local-12-79", "mine")]
    assert other_client_ids(members, OWN, "local-1") == ["app-u-local-1-78"]


def test_a_second_query_of_the_application_in_the_group_logs_the_first_without_a_warning(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    fake.next("DescribeGroups", of_members(OWN, "app-t-local-1-78", "app-t-local-2-79"))
    with caplog.at_level(logging.INFO):
        started(fake)
    assert f"group g: 2 {SHARED}, also app-t-local-1-78. Each reads only some of" in caplog.text
    assert {record.levelname for record in caplog.records} == {"INFO"}


@pytest.mark.parametrize("fault", [of_members(OWN, "app-t-local-2-79"), Fault(error=15), Fault(error=30)])
def test_other_applications_and_an_undescribable_group_log_no_other_members(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    fake.next("DescribeGroups", fault)
    with caplog.at_level(logging.INFO):
        started(fake)
    assert fake.request_count("DescribeGroups") == 1
    assert SHARED not in caplog.text


def test_without_an_application_id_there_is_no_lookup(fake: FakeKafka) -> None:
    started(fake, application_id="")
    assert not fake.request_count("DescribeGroups")
