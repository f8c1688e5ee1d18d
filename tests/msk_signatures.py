"""Checks the tokens of Amazon MSK as its brokers do: by the rules of AWS's Signature Version 4, without AWS's code.

The rules: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timezone
from urllib.parse import parse_qsl, quote, urlsplit

ACCESS_KEY, SECRET_KEY = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
"""The keys of AWS's published examples."""

UNSIGNED = ("X-Amz-Signature", "User-Agent")
"""Parameters that follow the signature."""


class RejectedToken(Exception):
    """The token is not valid; the text is the reason."""


def signature(secret_key: str, host: str, parameters: Mapping[str, str]) -> str:
    """Returns the signature of ``GET https://HOST/?PARAMETERS``. The parameters are not encoded."""
    _, day, region, service, last = parameters["X-Amz-Credential"].split("/")
    pairs = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in parameters.items())
    query = "&".join(f"{name}={value}" for name, value in pairs)
    request = f"GET\n/\n{query}\nhost:{host}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    scope = "/".join((day, region, service, last))
    text = "\n".join(
        ("AWS4-HMAC-SHA256", parameters["X-Amz-Date"], scope, hashlib.sha256(request.encode()).hexdigest())
    )
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, service, last, text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def parameters_of(token: str) -> tuple[str, dict[str, str]]:
    """Returns the host and the parameters of the signed URL in a token."""
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    if (url.scheme, url.path) != ("https", "/"):
        raise RejectedToken(f"not a signed URL: {url.geturl()}")
    return url.netloc, dict(parse_qsl(url.query, strict_parsing=True))


def check_token(token: str, secret_keys: Mapping[str, str], region: str, now: datetime | None = None) -> str:
    """Returns the access key that signed a token for a cluster in ``region``.

    Args:
        secret_keys: the secret key of each access key.

    Raises:
        RejectedToken: the token is not valid; MSK would reject it.
    """
    now = now or datetime.now(timezone.utc)
    host, parameters = parameters_of(token)
    access_key, *scope = parameters["X-Amz-Credential"].split("/")
    signed_at = datetime.strptime(parameters["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    signed = {name: value for name, value in parameters.items() if name not in UNSIGNED}
    if host != f"kafka.{region}.amazonaws.com" or scope != [
        f"{signed_at:%Y%m%d}",
        region,
        "kafka-cluster",
        "aws4_request",
    ]:
        raise RejectedToken(f"signed for {host} and {scope}, not for {region}")
    if (parameters["Action"], parameters["X-Amz-SignedHeaders"]) != ("kafka-cluster:Connect", "host"):
        raise RejectedToken("signed for another action")
    if not 0 <= (now - signed_at).total_seconds() < int(parameters["X-Amz-Expires"]):
        raise RejectedToken(f"signed at {signed_at}, and now it is {now}")
    if access_key not in secret_keys:
        raise RejectedToken(f"unknown access key {access_key}")
    if not hmac.compare_digest(signature(secret_keys[access_key], host, signed), parameters["X-Amz-Signature"]):
        raise RejectedToken("wrong signature")
    return access_key
