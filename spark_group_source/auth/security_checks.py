"""Checks between the options of TLS and SASL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_group_source.auth import msk_iam_options
from spark_group_source.auth.jaas import PasswordLogin
from spark_group_source.auth.msk_iam_options import IamLogin
from spark_group_source.auth.oauth.endpoint_url import names_file
from spark_group_source.auth.oauth.login import OAuthLogin
from spark_group_source.auth.sasl_options import BY_PASSWORD, MECHANISMS
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

_LAYERS = {"SSL": ("kafka.ssl.", "SSL or SASL_SSL"), "SASL": ("kafka.sasl.", "SASL_PLAINTEXT or SASL_SSL")}
"""By layer, the beginning of its options' names, and the security protocols that have this layer."""


def check_layers(options: SecurityOptions) -> None:
    """Raises OptionError if an option of TLS or SASL is set and the security protocol is without this layer."""
    for layer, (prefix, protocols) in _LAYERS.items():
        if layer in options.protocol:
            continue
        for name in options.given:
            if name.startswith(prefix):
                raise OptionError(
                    f"Option '{name}' has no effect with 'kafka.security.protocol' {options.protocol}.",
                    f"Set 'kafka.security.protocol' to {protocols}, or remove '{name}'.",
                )


def check_sign_in(options: SecurityOptions) -> None:
    """Checks that the mechanism has all its options, and none of another mechanism."""
    if options.mechanism is None:
        raise OptionError(f"Option '{MECHANISM}' is missing.", f"Set it to one of {', '.join(MECHANISMS)}.")
    if JAAS_CONFIG in options.given:
        _check_no_credentials_beside_jaas(options)
    _check_login_module(options, options.mechanism)
    sign_in = _sign_in_options(options, options.mechanism)
    for name in sign_in.needed:
        if name not in options.given:
            raise OptionError(f"Option '{name}' is missing.", f"Set it: {sign_in.reason} needs it.")
    known = (MECHANISM, *sign_in.needed, *sign_in.allowed)
    for name in options.given:
        if name.startswith("kafka.sasl.") and name not in known:
            raise OptionError(f"Option '{name}' has no effect with {sign_in.reason}.", "Remove it.")


def _check_no_credentials_beside_jaas(options: SecurityOptions) -> None:
    for name in (USERNAME, PASSWORD):
        if name in options.given:
            raise OptionError(f"Options '{JAAS_CONFIG}' and '{name}' are set.", "Set only one of them.")


@dataclass(frozen=True, slots=True)
class _SignInOptions:
    """The options that a sign-in needs and those that it allows. ``reason`` is the option that decides about both."""

    reason: str
    needed: Sequence[str] = ()
    allowed: Sequence[str] = ()


def _sign_in_options(options: SecurityOptions, chosen: str) -> _SignInOptions:
    reason = f"'{MECHANISM}' {chosen}"
    if chosen in BY_PASSWORD:
        if options.jaas is not None:
            return _SignInOptions(reason, needed=[JAAS_CONFIG])
        return _SignInOptions(reason, needed=[USERNAME, PASSWORD])
    if chosen == "GSSAPI":
        return _SignInOptions(reason, needed=[KERBEROS_SERVICE])
    if chosen == msk_iam_options.MECHANISM:
        return _SignInOptions(reason, allowed=[JAAS_CONFIG, CLIENT_HANDLER])
    if options.uses_msk_iam:
        return _SignInOptions(reason, allowed=[JAAS_CONFIG, CLIENT_HANDLER, LOGIN_HANDLER])
    if options.token_provider is not None:
        return _SignInOptions(f"'{TOKEN_FUNCTION}'", allowed=[TOKEN_FUNCTION])
    if names_file(options.oauth.get("endpoint")):
        reason = f"a file in '{TOKEN_ENDPOINT}'"
        return _SignInOptions(reason, allowed=_oauth_options(options, excluded=_OF_A_CLIENT))
    return _SignInOptions(reason, allowed=_oauth_options(options))


def _check_login_module(options: SecurityOptions, chosen: str) -> None:
    login = options.jaas
    if login is None:
        return
    module, mechanisms = _module_and_mechanisms(login)
    if chosen not in mechanisms:
        raise OptionError(
            f"Option 'kafka.sasl.jaas.config' has the module {module}, and 'kafka.sasl.mechanism' is {chosen}.",
            f"Set 'kafka.sasl.mechanism' to {' or '.join(mechanisms)}, or correct the JAAS config.",
        )
    if chosen != "OAUTHBEARER":
        return
    if login == OAuthLogin():  # a module without settings fits any handler
        return
    if isinstance(login, IamLogin) != options.uses_msk_iam:
        raise OptionError(
            "Options 'kafka.sasl.jaas.config' and 'kafka.sasl.login.callback.handler.class' do not fit together.",
            f"Settings of AWS in the JAAS config need the {msk_iam_options.LOGIN_HANDLER}, and it allows no others.",
        )


def _module_and_mechanisms(login: PasswordLogin | OAuthLogin | IamLogin) -> tuple[str, Sequence[str]]:
    """The module of a login, and the mechanisms that it serves."""
    if isinstance(login, PasswordLogin):
        return "PlainLoginModule or ScramLoginModule", BY_PASSWORD
    if isinstance(login, OAuthLogin):
        return "OAuthBearerLoginModule", ["OAUTHBEARER"]
    if login.module == "IAMLoginModule":
        return login.module, [msk_iam_options.MECHANISM]
    return login.module, ["OAUTHBEARER"]


def _oauth_options(options: SecurityOptions, excluded: Sequence[str] = ()) -> list[str]:
    """The options of OAuth that the user has set and that an OAuth client or a token file may have."""
    allowed = [JAAS_CONFIG, LOGIN_HANDLER]
    for name in options.given:
        if name == TOKEN_FUNCTION or name in excluded:
            continue
        if name.startswith(_OF_OAUTH):
            allowed.append(name)
    return allowed
