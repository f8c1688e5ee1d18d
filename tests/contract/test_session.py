"""With KIP-848 a member stops reading when its session at the brokers ends, whose length it asks them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from spark_group_source.clock import BOOT_TIME, monotonic
from spark_group_source.testing import EmbeddedKafka
from tests.conftest import needs_kip_848
from tests.contract.conftest import CONSUMER_BASE, Bench, eventually

pytestmark = pytest.mark.one_protocol("consumer", reason="a classic member chooses its session timeout")

SESSION_S = 3.0  # a member assumes 45 s if the brokers do not tell theirs


@pytest.mark.integration
@needs_kip_848
def test_a_member_without_answers_stops_when_its_session_at_the_brokers_ends(
    kafka: EmbeddedKafka, unique: Callable[[str], str], group: str
) -> None:
    setting = {"consumer.session.timeout.ms": f"{SESSION_S * 1000:.0f}"}
    with kafka.admin() as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, configs=setting)])
    base = {name: value for name, value in CONSUMER_BASE.items() if name != "kafka.session.timeout.ms"}
    with contextlib.closing(Bench(kafka, kafka.create_topic(unique("session"), partitions=2), group, base)) as bench:
        query = bench.start()
        eventually(lambda: query.owns() == {0, 1}, "all partitions")
        began = time.monotonic()
        kafka.pause()  # nothing else runs meanwhile
        try:
            eventually(lambda: not query.owns(), "the end of the session")
            took = time.monotonic() - began
        finally:
            kafka.resume()
        assert took < SESSION_S + 2.0
        eventually(lambda: query.owns() == {0, 1}, "all partitions")


def test_a_broker_that_does_not_tell_its_session_timeout_is_named_with_the_one_assumed(
    on_fake: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    query = on_fake.start(kafka_session_timeout_ms="7000")
    line = "the brokers do not say the group's session timeout (DESCRIBE_CONFIGS on the group or the cluster), 7 s are"
    eventually(lambda: line in caplog.text, "the line")
    on_fake.expire(query)
    eventually(lambda: query.driver.counters.joins > 1, "another join")
    eventually(lambda: len(query.owns()) == 4, "the next assignment")
    assert caplog.text.count(line) == 1


@pytest.mark.skipif(BOOT_TIME is None, reason="the system has no clock that counts the time of a suspended machine")
def test_a_session_ends_on_a_machine_that_was_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = time.clock_gettime
    assert BOOT_TIME is not None
    monkeypatch.setattr(time, "clock_gettime", lambda clock: asked(clock) + (600.0 if clock == BOOT_TIME else 0.0))
    assert monotonic() - time.monotonic() > 500.0
