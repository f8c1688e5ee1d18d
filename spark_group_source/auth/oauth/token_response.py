"""The answer of a token endpoint: the token in it and how long it lives, or the error."""

from __future__ import annotations

import base64
import email.utils
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from spark_group_source.auth.oauth.token import EXPIRY_MARGIN, IssuedToken
from spark_group_source.text import printable

MAX_LIFETIME = 30 * 86400.0
"""Longest lifetime in seconds that is relied on; a service may name any number."""


CLOCK_TOLERANCE = 30.0
"""Seconds between this clock and the server's from which on an error mentions the difference."""


_TOKEN = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
"""The characters that brokers accept in a token (RFC 6750)."""


class UnusableAnswer(Exception):
    """The answer holds no usable token. The text completes "The token endpoint ...", and shows nothing of a token."""


def read_token(
    body: bytes, date: str, now: float, subject_claim: str = "sub", scope_claim: str = "scope"
) -> IssuedToken:
    """Returns the token of a successful answer.

    Args:
        date: the server's time as an HTTP date, or empty. Lifetimes are counted from it: this clock may be wrong.
        now: this clock, in seconds since 1970.

    Raises:
        UnusableAnswer: it holds no token that is valid for a while.
    """
    fields = _json_object(body)
    if fields is None:
        raise UnusableAnswer("answered with a text that is not a JSON object")
    found = [fields.get(key) for key in ("access_token", "id_token")]  # the second as Kafka's Java client does
    text = next((each.strip() for each in found if isinstance(each, str) and each.strip()), None)
    if text is None:
        raise UnusableAnswer("answered without an access_token")
    if not _TOKEN.fullmatch(text):
        raise UnusableAnswer("issued a token with characters that no token may have")
    claims = token_claims(text)
    server_now = _seconds(date, now)
    lifetimes = _lifetimes(fields.get("expires_in"), None if claims is None else claims.get("exp"), server_now)
    if not lifetimes:
        problem = "is not a JWT" if claims is None else "has no claim exp"
        raise UnusableAnswer(f"issued a token without an end: it {problem}, and the answer has no expires_in")
    lifetime = min(*lifetimes, MAX_LIFETIME)
    if lifetime <= EXPIRY_MARGIN:
        raise UnusableAnswer(_expired(lifetime, server_now, now))
    return IssuedToken(text, lifetime, _holder(claims or {}, subject_claim, scope_claim))


def _json_object(text: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


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
    fields = _json_object(body) or {}
    error = fields.get("error") or fields.get("errorCode") or ""
    description = fields.get("error_description") or fields.get("errorSummary") or ""
    return str(error), str(description)


def _lifetimes(expires_in: object, expiry: object, server_now: float) -> list[float]:
    found = [_number(expires_in), None if (end := _number(expiry)) is None else end - server_now]
    return [each for each in found if each is not None]


def _number(value: object) -> float | None:
    """A finite number; some services write it as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


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
    return (
        f"{happened}; the clock of this machine is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} its clock"
    )


def _holder(claims: Mapping[str, Any], subject_claim: str, scope_claim: str) -> str:
    """What the log says of a token, without its text."""
    subject, scope = claims.get(subject_claim), claims.get(scope_claim)
    scopes = " ".join(map(str, scope)) if isinstance(scope, list) else scope
    of_whom = f" of {printable(repr(subject))}" if subject else ""
    return of_whom + (f" with scope {printable(repr(scopes))}" if scopes else "")
