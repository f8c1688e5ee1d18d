"""A fake Amazon MSK: brokers by MSK's names that check the signature of every token.

The rules of signatures: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from tests.fake import FakeKafka

REGION = "eu-west-1"
AUTHENTICATION_FAILED = 58

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
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{parameters['X-Amz-Date']}\n{day}/{region}/{service}/{last}\n{digest}"
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


def check_token(token: str, secret_keys: Mapping[str, str]) -> str:
    """Returns the access key that signed a token for a cluster in ``REGION``, by the secret key of each access key.

    Raises:
        RejectedToken: the token is not valid; MSK would reject it.
    """
    host, parameters = parameters_of(token)
    access_key, *scope = parameters["X-Amz-Credential"].split("/")
    signed_at = datetime.strptime(parameters["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    if (host, scope[1:3]) != (f"kafka.{REGION}.amazonaws.com", [REGION, "kafka-cluster"]):
        raise RejectedToken(f"signed for {host} and {scope}, not for {REGION}")
    if not 0 <= (datetime.now(timezone.utc) - signed_at).total_seconds() < int(parameters["X-Amz-Expires"]):
        raise RejectedToken(f"signed at {signed_at}")
    signed = {name: value for name, value in parameters.items() if name not in UNSIGNED}
    secret_key = secret_keys.get(access_key, "")
    if not hmac.compare_digest(signature(secret_key, host, signed), parameters["X-Amz-Signature"]):
        raise RejectedToken("wrong signature")
    return access_key


class FakeMsk(FakeKafka):
    """A cluster that accepts only tokens signed with ``secret_keys``, by access key. ``accepted`` has the keys used.

    ``session_ms`` is how long an accepted token lets a connection live. Without ``named`` the brokers have the address
    of this machine instead of names of MSK.
    """

    def __init__(self, secret_keys: dict[str, str], session_ms: int = 0, named: bool = True) -> None:
        super().__init__(brokers=2)
        self._named = named
        self.secret_keys = secret_keys
        self.session_ms = session_ms
        self.accepted: list[str] = []

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, by names of MSK."""
        if not self._named:
            return super().bootstrap_servers
        return ",".join(f"{host(node)}:{broker.port}" for node, broker in self.brokers.items())

    def _Metadata(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        super()._Metadata(request, response, node, error)
        if self._named:
            for each in response.brokers:
                each.host = host(each.node_id)

    def _SaslHandshake(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response.mechanisms = ["AWS_MSK_IAM", "OAUTHBEARER"]
        response.error_code = 0 if request.mechanism in response.mechanisms else 33

    def _SaslAuthenticate(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        super()._SaslAuthenticate(request, response, node, error)
        token = request.auth_bytes.decode().removeprefix("n,,\x01auth=Bearer ").rstrip("\x01")
        try:
            self.accepted.append(check_token(token, self.secret_keys))
            response.session_lifetime_ms = self.session_ms
        except RejectedToken as reason:
            response.error_code, response.error_message = AUTHENTICATION_FAILED, f"Access denied: {reason}"


def host(node: int) -> str:
    """The name of a broker."""
    return f"b-{node}.orders.c2.kafka.{REGION}.amazonaws.com"
