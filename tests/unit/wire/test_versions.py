"""Requests have the versions that connections check; only ``wire/versions.py`` contains the numbers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import spark_group_source
from spark_group_source.wire import versions

PACKAGE = Path(spark_group_source.__file__).parent
SENDING = [path for path in sorted(PACKAGE.rglob("*.py")) if "testing" not in path.relative_to(PACKAGE).parts]
NO_REQUESTS = {"JoinGroupResponse.JoinGroupResponseMember", "told.user_data.encode"}
"""Not requests: arguments and results of kafka-python's assignors."""


def constant(request: str) -> str:
    """Returns the constant of a request's version: ``OFFSET_FETCH`` for ``OffsetFetchRequest``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", request.removesuffix("Request")).upper()


def versions_given(node: ast.AST) -> list[tuple[str, str]]:
    """Returns the called name and the ``version=`` of each call below a node."""
    return [
        (ast.unparse(call.func), ast.unparse(keyword.value))
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "version"
    ]


def functions() -> list[ast.FunctionDef]:
    """Returns all functions that build a request."""
    found = [
        node for path in SENDING for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
    ]
    return [each for each in found if any(called.endswith("Request") for called, _ in versions_given(each))]


@pytest.mark.parametrize("path", SENDING, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_version_of_a_message_is_a_number(path: Path) -> None:
    given = versions_given(ast.parse(path.read_text()))
    assert [each for each in given if each[1].isdigit() and each[0] not in NO_REQUESTS] == []


@pytest.mark.parametrize("function", functions(), ids=lambda function: function.name)
def test_a_request_and_the_messages_in_it_have_the_version_of_its_name(function: ast.FunctionDef) -> None:
    given = versions_given(function)
    for request in {called for called, _ in given if called.endswith("Request")}:
        own = [version for called, version in given if called == request or not called.endswith("Request")]
        assert {each.removeprefix("versions.") for each in own} == {constant(request)}


def test_the_version_of_every_request_after_the_check_is_checked() -> None:
    built = {called for each in functions() for called, _ in versions_given(each) if called.endswith("Request")}
    before = {"ApiVersionsRequest", "SaslHandshakeRequest", "SaslAuthenticateRequest"}
    assert built - before == {f"{each.name}Request" for each in versions.PINNED}
    assert {each: getattr(versions, constant(each.name)) for each in versions.PINNED} == versions.PINNED
