"""Checks between the options of TLS and SASL."""

from __future__ import annotations

from spark_group_source.auth import msk_iam_options
from spark_group_source.auth.msk_iam_options import IamLogin
from spark_group_source.auth.oauth.endpoint_url import names_file
from spark_group_source.auth.oauth.login import OAuthLogin
from spark_group_source.auth.sasl_options import BY_PASSWORD, MECHANISMS, PROTOCOLS
from spark_group_source.auth.security_options import (
    CLIENT_HANDLER,
    CLIENT_ID,
    CLIENT_SECRET,
    JAAS_CONFIG,
    KERBEROS_SERVICE,
    LOGIN_HANDLER,
    MECHANISM,
    PASSWORD,
    SCOPE,
    TOKEN_ENDPOINT,
    TOKEN_FUNCTION,
    USERNAME,
    SecurityOptions,
)
from spark_group_source.errors import OptionError

_OF_A_CLIENT = (CLIENT_ID, CLIENT_SECRET, SCOPE)
_OF_OAUTH = ("kafka.sasl.oauthbearer.", "kafka.sasl.login.")


def check_layer(options: SecurityOptions, layer: str, given: list[str]) -> None:
    """Raises OptionError if options of a layer, SSL or SASL, are set and the security protocol is without it."""
    if given and layer not in options.protocol:
        protocols = [protocol for protocol in PROTOCOLS if layer in protocol]
        raise OptionError(
            f"Option '{given[0]}' has no effect with 'kafka.security.protocol' {options.protocol}.",
            f"Set 'kafka.security.protocol' to {' or '.join(protocols)}, or remove '{given[0]}'.",
        )


def check_sign_in(options: SecurityOptions) -> None:
    """Checks that the mechanism has all its options, and none of another mechanism."""
    if options.mechanism is None:
        raise OptionError(f"Option '{MECHANISM}' is missing.", f"Set it to one of {', '.join(MECHANISMS)}.")
    for name in (USERNAME, PASSWORD):
        if name in options.given and JAAS_CONFIG in options.given:
            raise OptionError(f"Options '{JAAS_CONFIG}' and '{name}' are set.", "Set only one of them.")
    _check_login_module(options, options.mechanism)
    needed, allowed, reason = _options_of(options, options.mechanism)
    for name in needed:
        if name not in options.given:
            raise OptionError(f"Option '{name}' is missing.", f"Set it: {reason} needs it.")
    for name in options.given:
        if name.startswith("kafka.sasl.") and name not in (MECHANISM, *needed, *allowed):
            raise OptionError(f"Option '{name}' has no effect with {reason}.", "Remove it.")


def _options_of(options: SecurityOptions, chosen: str) -> tuple[list[str], list[str], str]:
    """Returns the options that a sign-in needs, those that it allows, and what decides about both."""
    reason = f"'{MECHANISM}' {chosen}"
    if chosen in BY_PASSWORD:
        return [JAAS_CONFIG] if options.jaas else [USERNAME, PASSWORD], [], reason
    if chosen == "GSSAPI":
        return [KERBEROS_SERVICE], [], reason
    if chosen == msk_iam_options.MECHANISM:
        return [], [JAAS_CONFIG, CLIENT_HANDLER], reason
    if options.uses_msk_iam:
        return [], [JAAS_CONFIG, CLIENT_HANDLER, LOGIN_HANDLER], reason
    allowed, oauth_reason = _oauth_options(options)
    without_login = options.token_provider is not None
    return [], allowed if without_login else [*allowed, JAAS_CONFIG, LOGIN_HANDLER], oauth_reason or reason


def _check_login_module(options: SecurityOptions, chosen: str) -> None:
    login = options.jaas
    if login is None:
        return
    module = "PlainLoginModule or ScramLoginModule"
    mechanisms: tuple[str, ...] = BY_PASSWORD
    if isinstance(login, OAuthLogin):
        module, mechanisms = "OAuthBearerLoginModule", ("OAUTHBEARER",)
    elif isinstance(login, IamLogin):
        module = login.module
        mechanisms = (msk_iam_options.MECHANISM,) if module == "IAMLoginModule" else ("OAUTHBEARER",)
    if chosen not in mechanisms:
        raise OptionError(
            f"Option 'kafka.sasl.jaas.config' has the module {module}, and 'kafka.sasl.mechanism' is {chosen}.",
            f"Set 'kafka.sasl.mechanism' to {' or '.join(mechanisms)}, or correct the JAAS config.",
        )
    if chosen == "OAUTHBEARER" and isinstance(login, IamLogin) != options.uses_msk_iam and login != OAuthLogin():
        raise OptionError(
            "Options 'kafka.sasl.jaas.config' and 'kafka.sasl.login.callback.handler.class' do not fit together.",
            f"Settings of AWS in the JAAS config need the {msk_iam_options.LOGIN_HANDLER}, and it allows no others.",
        )


def _oauth_options(options: SecurityOptions) -> tuple[list[str], str]:
    """Returns the given OAuth options that are allowed, and the option that excludes the others, if any does."""
    if options.token_provider is not None:
        return [TOKEN_FUNCTION], f"'{TOKEN_FUNCTION}'"
    allowed = [
        name for name in options.given if name.startswith(_OF_OAUTH) and name not in (TOKEN_FUNCTION, LOGIN_HANDLER)
    ]
    if names_file(options.oauth.get("endpoint")):
        return [name for name in allowed if name not in _OF_A_CLIENT], f"a file in '{TOKEN_ENDPOINT}'"
    return allowed, ""
