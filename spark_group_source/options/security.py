"""TLS and SASL options: their rows of the table, their checks, and the settings for connections.

The names come from Kafka's Java client. ``kafka.sasl.username`` and ``kafka.sasl.password`` come from librdkafka:
Spark redacts options with "password" in their names, but not Java's JAAS config.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from spark_group_source.errors import OptionError
from spark_group_source.options import logins, msk_iam
from spark_group_source.options.logins import (
    OAUTH_OPTIONS,
    OAuthLogin,
    OAuthOptions,
    PasswordLogin,
    options_of_oauth,
    token_provider,
)
from spark_group_source.options.msk_iam import IamLogin
from spark_group_source.options.option import Option
from spark_group_source.options.tls import (
    BY_PASSWORD,
    MECHANISMS,
    PROTOCOLS,
    STORE_TYPES,
    TLS_ROWS,
    check_tls,
    client_callback_handler,
    login_callback_handler,
    mechanism,
    protocol,
    secret,
)
from spark_group_source.options.values import non_blank
from spark_group_source.text import Secret
from spark_group_source.wire.settings import TLS_VERSIONS, Sasl, Tls

_MECHANISM = "kafka.sasl.mechanism"
_USERNAME, _PASSWORD = "kafka.sasl.username", "kafka.sasl.password"
_LOGIN_LINE = "kafka.sasl.jaas.config"
_LOGIN_HANDLER = "kafka.sasl.login.callback.handler.class"
_CLIENT_HANDLER = "kafka.sasl.client.callback.handler.class"
_KERBEROS_SERVICE = "kafka.sasl.kerberos.service.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions(OAuthOptions):
    """The fields of :data:`SECURITY_OPTIONS`. PEM texts have real line breaks.

    ``tls`` and ``sasl`` are the settings of connections that follow from the other fields; see
    :func:`security_settings`.
    """

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_jaas: PasswordLogin | OAuthLogin | IamLogin | None = None
    sasl_username: str | None = None
    sasl_password: Secret | None = None
    sasl_login_handler: str | None = None
    sasl_client_handler: str | None = None
    sasl_kerberos_service: str | None = None
    ssl_ca_file: str | None = None
    ssl_ca_text: str | None = None
    ssl_key_file: str | None = None
    ssl_key_text: Secret | None = None
    ssl_chain_text: str | None = None
    ssl_key_password: Secret | None = None
    ssl_check_host_name: bool = True
    ssl_versions: tuple[str, ...] = TLS_VERSIONS
    ssl_ciphers: tuple[str, ...] = ()
    ssl_truststore_type: str = "PEM"
    ssl_keystore_type: str = "PEM"
    tls: Tls | None = None
    sasl: Sasl | None = None


SECURITY_OPTIONS: tuple[Option, ...] = (
    Option("kafka.security.protocol", "security_protocol", protocol),
    Option(_MECHANISM, "sasl_mechanism", mechanism),
    Option(_USERNAME, "sasl_username", non_blank),
    Option(_PASSWORD, "sasl_password", secret, secret=True),
    Option(_LOGIN_LINE, "sasl_jaas", logins.parse_jaas, secret=True),
    *OAUTH_OPTIONS,
    Option(_LOGIN_HANDLER, "sasl_login_handler", login_callback_handler),
    Option(_CLIENT_HANDLER, "sasl_client_handler", client_callback_handler),
    Option(_KERBEROS_SERVICE, "sasl_kerberos_service", non_blank),
    *(Option(f"kafka.{row.name}", f"ssl_{row.field}", row.parse, secret=row.secret) for row in TLS_ROWS),
    *(Option(f"kafka.{row.name}", f"ssl_{row.field}", row.parse) for row in STORE_TYPES),
)

BootstrapServers = tuple[tuple[str, int], ...]


def security_settings(options: SecurityOptions, bootstrap_servers: BootstrapServers) -> tuple[Tls | None, Sasl | None]:
    """Returns the settings of TLS and SASL, ``None`` without them.

    Raises:
        OptionError: the options do not fit together, are not complete or name unusable files, or the region of an
            Amazon MSK cluster is unknown; the message names the option to change.
    """
    given = {row.name: getattr(options, row.field) != _DEFAULTS[row.field] for row in SECURITY_OPTIONS}
    _check_layer(options, "SSL", [name for name in given if name.startswith("kafka.ssl.") and given[name]])
    _check_layer(options, "SASL", [name for name in given if name.startswith("kafka.sasl.") and given[name]])
    sasl = tls = None
    if options.security_protocol.startswith("SASL"):
        _check_sign_in(options, given)
        sasl = _sasl(options, bootstrap_servers)
    if options.security_protocol.endswith("SSL"):
        tls = Tls(**{row.field: getattr(options, f"ssl_{row.field}") for row in TLS_ROWS})
        check_tls(tls)
    return tls, sasl


_DEFAULTS = {field.name: field.default for field in fields(SecurityOptions)}


def _sasl(options: SecurityOptions, bootstrap_servers: BootstrapServers) -> Sasl:
    chosen, login = options.sasl_mechanism or "", options.sasl_jaas
    if isinstance(login, PasswordLogin):
        return Sasl(chosen, login.username, login.password)
    if _uses_msk_iam(options):
        iam = login if isinstance(login, IamLogin) else None
        return Sasl("OAUTHBEARER", token_provider=msk_iam.msk_iam_tokens(bootstrap_servers, iam))
    if chosen == "OAUTHBEARER":
        oauth = login if isinstance(login, OAuthLogin) else OAuthLogin()
        return Sasl(chosen, token_provider=token_provider(options, oauth))
    return Sasl(chosen, options.sasl_username, options.sasl_password, kerberos_service=options.sasl_kerberos_service)


def _uses_msk_iam(options: SecurityOptions) -> bool:
    return options.sasl_mechanism == msk_iam.MECHANISM or options.sasl_login_handler == msk_iam.LOGIN_HANDLER


def _check_layer(options: SecurityOptions, layer: str, given: list[str]) -> None:
    if given and layer not in options.security_protocol:
        protocols = [protocol for protocol in PROTOCOLS if layer in protocol]
        raise OptionError(
            f"Option '{given[0]}' has no effect with 'kafka.security.protocol' {options.security_protocol}.",
            f"Set 'kafka.security.protocol' to {' or '.join(protocols)}, or remove '{given[0]}'.",
        )


def _check_sign_in(options: SecurityOptions, given: dict[str, bool]) -> None:
    """Checks that the mechanism has all its options, and none of another mechanism."""
    if options.sasl_mechanism is None:
        raise OptionError(f"Option '{_MECHANISM}' is missing.", f"Set it to one of {', '.join(MECHANISMS)}.")
    for name in (_USERNAME, _PASSWORD):
        if given[name] and given[_LOGIN_LINE]:
            raise OptionError(f"Options '{_LOGIN_LINE}' and '{name}' are set.", "Set only one of them.")
    _check_login_module(options, options.sasl_mechanism)
    needed, allowed, reason = _options_of(options, options.sasl_mechanism)
    for name in needed:
        if not given[name]:
            raise OptionError(f"Option '{name}' is missing.", f"Set it: {reason} needs it.")
    for name, is_given in given.items():
        if is_given and name.startswith("kafka.sasl.") and name not in (_MECHANISM, *needed, *allowed):
            raise OptionError(f"Option '{name}' has no effect with {reason}.", "Remove it.")


def _options_of(options: SecurityOptions, chosen: str) -> tuple[list[str], list[str], str]:
    """Returns the options that a sign-in needs, those that it allows, and what decides about both."""
    reason = f"'{_MECHANISM}' {chosen}"
    if chosen in BY_PASSWORD:
        return [_LOGIN_LINE] if options.sasl_jaas else [_USERNAME, _PASSWORD], [], reason
    if chosen == "GSSAPI":
        return [_KERBEROS_SERVICE], [], reason
    if chosen == msk_iam.MECHANISM:
        return [], [_LOGIN_LINE, _CLIENT_HANDLER], reason
    if _uses_msk_iam(options):
        return [], [_LOGIN_LINE, _CLIENT_HANDLER, _LOGIN_HANDLER], reason
    allowed, oauth_reason = options_of_oauth(options)
    without_login = options.sasl_token_provider is not None
    return [], allowed if without_login else [*allowed, _LOGIN_LINE, _LOGIN_HANDLER], oauth_reason or reason


def _check_login_module(options: SecurityOptions, chosen: str) -> None:
    login = options.sasl_jaas
    if login is None:
        return
    module = "PlainLoginModule or ScramLoginModule"
    mechanisms: tuple[str, ...] = BY_PASSWORD
    if isinstance(login, OAuthLogin):
        module, mechanisms = "OAuthBearerLoginModule", ("OAUTHBEARER",)
    elif isinstance(login, IamLogin):
        module = login.module
        mechanisms = (msk_iam.MECHANISM,) if module == "IAMLoginModule" else ("OAUTHBEARER",)
    if chosen not in mechanisms:
        raise OptionError(
            f"Option 'kafka.sasl.jaas.config' has the module {module}, and 'kafka.sasl.mechanism' is {chosen}.",
            f"Set 'kafka.sasl.mechanism' to {' or '.join(mechanisms)}, or correct the JAAS config.",
        )
    if chosen == "OAUTHBEARER" and isinstance(login, IamLogin) != _uses_msk_iam(options) and login != OAuthLogin():
        raise OptionError(
            "Options 'kafka.sasl.jaas.config' and 'kafka.sasl.login.callback.handler.class' do not fit together.",
            f"Settings of AWS in the JAAS config need the {msk_iam.LOGIN_HANDLER}, and it allows no others.",
        )
