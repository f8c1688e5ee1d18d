"""A rewind holds for every later owner: some of the cases in :mod:`tests.contract.rewinds`, on both Kafkas."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import astuple
from itertools import combinations

import pytest

from tests.conftest import KAFKA, WITHOUT_KIP_848
from tests.contract.conftest import Kafka
from tests.contract.rewinds import CASES, DECISIONS, Case, fill, run
from tests.fake import FakeKafka

THREADS = 6
CHOSEN = CASES[:: int(os.environ.get("REWINDS_EVERY", "17"))]
"""The step and the number of values in each dimension have no common factor, so all pairs of values occur.
``REWINDS_EVERY=1`` takes all."""


@pytest.fixture(params=["fake", "real"])
def kafka_of_cases(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    if request.param == "real":
        yield request.getfixturevalue("kafka")
        return
    with FakeKafka() as fake:
        yield fake


@pytest.mark.parametrize("decision", DECISIONS)
def test_the_decision_where_a_group_continues_holds_for_every_later_owner(
    kafka_of_cases: Kafka, unique: Callable[[str], str], decision: str
) -> None:
    fake = isinstance(kafka_of_cases, FakeKafka)
    cases = [each for each in (CHOSEN[::3] if fake else CHOSEN) if each.decision == decision]
    if WITHOUT_KIP_848 and not fake:
        cases = [each for each in cases if each.protocol != "consumer"]
    if not fake and KAFKA.startswith(("1.", "2.1.")):
        cases = [each for each in cases if each.member != "static"]  # Kafka 2.3 has static members
    broken = run(kafka_of_cases, fill(kafka_of_cases, unique("rewinds")), cases, THREADS)
    assert not broken, "\n".join([f"{len(broken)} of {len(cases)} cases:", *broken])


def test_the_chosen_cases_have_all_pairs_of_values() -> None:
    def pairs(cases: list[Case]) -> set[tuple[object, ...]]:
        values = [list(enumerate(astuple(each))) for each in cases]
        return {pair for each in values for pair in combinations(each, 2)}

    assert pairs(CHOSEN) == pairs(CASES)
