"""Parsers of the SASL options.

A parser raises ValueError for an invalid text. The message is the rest of a sentence that begins with "It must be", and
shows no secret.
"""

from __future__ import annotations

import importlib.util

from spark_group_source.auth import msk_iam_options
from spark_group_source.option import one_of

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
BY_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*BY_PASSWORD, "OAUTHBEARER", msk_iam_options.MECHANISM, "GSSAPI")


def protocol(text: str) -> str:
    """A security protocol."""
    return one_of(text, PROTOCOLS)


def mechanism(text: str) -> str:
    """A SASL mechanism."""
    name = one_of(text, MECHANISMS)
    if name == msk_iam_options.MECHANISM:
        msk_iam_options.check_signer()
    if name == "GSSAPI" and importlib.util.find_spec("gssapi") is None:
        raise ValueError(
            "another mechanism, unless you install Kerberos for Python on the driver and the executors: pip install"
            " gssapi (it needs the system's Kerberos libraries)"
        )
    return name


def login_callback_handler(text: str) -> str:
    """Java's class that provides tokens, without its package."""
    name = text.strip().rpartition(".")[2]
    if name == "GcpLoginCallbackHandler":
        raise ValueError(
            "removed: set 'kafka.sasl.oauthbearer.token.provider' to the function in docs/authentication.md,"
            " 'Google Cloud'"
        )
    if name == "OAuthBearerLoginCallbackHandler":
        return name
    if name != msk_iam_options.LOGIN_HANDLER:
        raise ValueError(
            f"the OAuthBearerLoginCallbackHandler of Kafka, or the {msk_iam_options.LOGIN_HANDLER} of Amazon MSK."
            " Instead of another Java class set 'kafka.sasl.oauthbearer.token.provider' to a function that returns"
            " tokens"
        )
    msk_iam_options.check_signer()
    return name


def client_callback_handler(text: str) -> str:
    """Java's class that answers a mechanism's questions, without its package."""
    name = text.strip().rpartition(".")[2]
    if name not in msk_iam_options.CLIENT_HANDLERS:
        raise ValueError(
            f"{' or '.join(msk_iam_options.CLIENT_HANDLERS)}, of Amazon MSK; the source uses no Java classes"
        )
    return name
