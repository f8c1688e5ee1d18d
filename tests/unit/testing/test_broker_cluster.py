"""What a cluster is made of, without starting one."""

from __future__ import annotations

import uuid

import pytest

from spark_group_source.testing import broker


def test_no_cluster_id_looks_like_an_option_of_kafkas_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([uuid.UUID(bytes=b"\xf8" + bytes(15)), uuid.UUID(bytes=b"\x04" + bytes(15))])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    assert broker.new_cluster_id() == "BAAAAAAAAAAAAAAAAAAAAA"
