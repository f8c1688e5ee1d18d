"""Tokens of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.wire.tokens import FileTokens, Token


def test_the_file_is_read_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = FileTokens(str(file), (("logicalCluster", "lkc-1"),))
    for problem, says in ((None, "No such file"), (b" \n", "is empty"), ("tökén".encode(), "not ASCII")):
        if problem is not None:
            file.write_bytes(problem)
        with pytest.raises(BrokerUnavailable, match=f"{file}.*{says}"):
            tokens.fetch(Deadline.after(1))
    for text in ("t0ken\n", "t1ken"):
        file.write_text(text)
        assert tokens.fetch(Deadline.after(1)) == Token(text.strip(), {"logicalCluster": "lkc-1"})
