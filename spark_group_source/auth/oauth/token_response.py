"""The answer of a token endpoint: a token and its lifetime, or an error."""

from __future__ import annotations

import base64
import email.utils
import math
import re
from collections.abc import Mapping
from typing import Any

from spark_group_source.auth.oauth.token import EXPIRY_MARGIN, IssuedToken
from spark_group_source.json_text import parse_json
from spark_group_source.text import printable

MAX_LIFETIME = 30 * 86400.0
"""Maximum lifetime in seconds that the source relies on. A service may name any number."""

CLOCK_TOLERANCE = 30.0
"""Minimum difference in seconds between this clock and the server's that an error mentions."""

_TOKEN = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
"""The characters that brokers accept in a token (RFC 6750)."""


class UnusableAnswer(Exception):
    """The answer holds no usable token. The text completes "The token endpoint ...", and shows nothing of a token."""


def read_token(
    body: bytes, date: str, now: float, subject_claim: str = "sub", scope_claim: str = "scope"
) -> IssuedToken:
    """Returns the token of a successful answer.

    Args:
        date: the server's time as an HTTP date, or empty. Lifetimes are measured from it, because the local clock may
            be off.
        now: this clock, in seconds since 1970.

    Raises:
        UnusableAnswer: the answer holds no token, or none that is valid for long enough to use it.
    """
    fields = _json_object(body)
    if fields is None:
        raise UnusableAnswer("answered with a text that is not a JSON object")
    text = _token_text(fields)
    if not _TOKEN.fullmatch(text):
        raise UnusableAnswer("issued a token with characters that no token may have")
    claims = token_claims(text)
    server_now = _seconds(date, now)
    lifetime = _lifetime(fields.get("expires_in"), claims, server_now)
    if lifetime <= EXPIRY_MARGIN:
        raise UnusableAnswer(_expired(lifetime, server_now, now))
    return IssuedToken(text, lifetime, _holder(claims, subject_claim, scope_claim))


def _token_text(fields: Mapping[str, Any]) -> str:
    for name in ("access_token", "id_token"):  # Kafka's Java client accepts the second name too
        value = fields.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    raise UnusableAnswer("answered without an access_token")


def _json_object(text: bytes) -> dict[str, Any] | None:
    try:
        fields = parse_json(text)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    return fields


def token_claims(text: str) -> Mapping[str, Any] | None:
    """Returns the claims of a JWT without a check of its signature, or ``None`` for another token."""
    parts = text.split(".")
    if len(parts) != 3:
        return None
    try:
        return _json_object(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return None


def read_error(body: bytes) -> tuple[str, str]:
    """Returns the error and its description as RFC 6749 or Okta names them; empty texts without them."""
    fields = _json_object(body)
    if fields is None:
        return "", ""
    return _first_text(fields, "error", "errorCode"), _first_text(fields, "error_description", "errorSummary")


def _first_text(fields: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that is not empty."""
    for name in names:
        if fields.get(name):
            return str(fields[name])
    return ""


def _lifetime(expires_in: object, claims: Mapping[str, Any] | None, server_now: float) -> float:
    """Seconds until the token expires, by the answer's ``expires_in`` or the token's ``exp``, whichever is earlier."""
    lifetimes = []
    seconds = _number(expires_in)
    if seconds is not None:
        lifetimes.append(seconds)
    end = None
    if claims is not None:
        end = _number(claims.get("exp"))
    if end is not None:
        lifetimes.append(end - server_now)
    if not lifetimes:
        raise UnusableAnswer(_without_end(claims))
    return min(*lifetimes, MAX_LIFETIME)


def _without_end(claims: Mapping[str, Any] | None) -> str:
    problem = "has no claim exp"
    if claims is None:
        problem = "is not a JWT"
    return f"issued a token without an end: it {problem}, and the answer has no expires_in"


def _number(value: object) -> float | None:
    """A finite number, which some services write as text."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    return number


def _seconds(date: str, default: float) -> float:
    """An HTTP date in seconds since 1970."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return default


def _expired(lifetime: float, server_now: float, now: float) -> str:
    if lifetime > 0:
        happened = f"issued a token that is valid for {lifetime:.1f} s only"
    else:
        happened = f"issued a token that expired {abs(lifetime):.0f} s ago"
    ahead = now - server_now
    if abs(ahead) < CLOCK_TOLERANCE:
        return happened
    if ahead > 0:
        return f"{happened}, and the clock of this machine is {ahead:.0f} s ahead of the endpoint's"
    return f"{happened}, and the clock of this machine is {-ahead:.0f} s behind the endpoint's"


def _holder(claims: Mapping[str, Any] | None, subject_claim: str, scope_claim: str) -> str:
    """The subject and scope of a token for the log, never its text."""
    if claims is None:
        return ""
    holder = ""
    subject = claims.get(subject_claim)
    if subject:
        holder = f" of {printable(repr(subject))}"
    scope = claims.get(scope_claim)
    if isinstance(scope, list):
        scope = " ".join(map(str, scope))
    if scope:
        holder += f" with scope {printable(repr(scope))}"
    return holder
