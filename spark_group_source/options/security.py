"""TLS and SASL options: their rows of the table, their checks, and the settings for connections.

The names come from Kafka's Java client. ``kafka.sasl.username`` and ``kafka.sasl.password`` come from librdkafka:
Spark redacts options with "password" in their names, but not Java's login line.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from spark_group_source.errors import OptionError
from spark_group_source.options import jaas, msk_iam
from spark_group_source.options.jaas import PasswordLogin
from spark_group_source.options.jaas_oauth import OAuthLogin
from spark_group_source.options.msk_iam import IamLogin
from spark_group_source.options.oauth import FUNCTION, OAUTH_OPTIONS, OAuthOptions, check_oauth, token_provider
from spark_group_source.options.option import Option
from spark_group_source.options.security_parsers import (
    BY_PASSWORD,
    MECHANISMS,
    PROTOCOLS,
    ciphers,
    client_callback_handler,
    host_name_check,
    keystore_type,
    login_callback_handler,
    mechanism,
    pem,
    private_key,
    protocol,
    protocols,
    secret,
    truststore_type,
)
from spark_group_source.options.value_parsers import non_blank
from spark_group_source.secret import Secret
from spark_group_source.wire.settings import Sasl, Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions(OAuthOptions):
    """The fields of :data:`SECURITY_OPTIONS`. PEM texts have real line breaks."""

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_jaas: PasswordLogin | OAuthLogin | IamLogin | None = None
    sasl_username: str | None = None
    sasl_password: Secret | None = None
    sasl_login_handler: str | None = None
    sasl_client_handler: str | None = None
    sasl_kerberos_service: str | None = None
    ssl_truststore_type: str = "PEM"
    ssl_truststore_location: str | None = None
    ssl_truststore_certificates: str | None = None
    ssl_keystore_type: str = "PEM"
    ssl_keystore_location: str | None = None
    ssl_keystore_chain: str | None = None
    ssl_keystore_key: Secret | None = None
    ssl_key_password: Secret | None = None
    ssl_check_host_name: bool = True
    ssl_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ssl_ciphers: tuple[str, ...] = ()


SECURITY_OPTIONS: tuple[Option, ...] = (
    Option("kafka.security.protocol", "security_protocol", protocol),
    Option("kafka.sasl.mechanism", "sasl_mechanism", mechanism),
    Option("kafka.sasl.username", "sasl_username", non_blank),
    Option("kafka.sasl.password", "sasl_password", secret, secret=True),
    Option("kafka.sasl.jaas.config", "sasl_jaas", jaas.login, secret=True),
    *OAUTH_OPTIONS,
    Option("kafka.sasl.login.callback.handler.class", "sasl_login_handler", login_callback_handler),
    Option("kafka.sasl.client.callback.handler.class", "sasl_client_handler", client_callback_handler),
    Option("kafka.sasl.kerberos.service.name", "sasl_kerberos_service", non_blank),
    Option("kafka.ssl.truststore.location", "ssl_truststore_location", non_blank),
    Option("kafka.ssl.truststore.certificates", "ssl_truststore_certificates", pem, secret=True),
    Option("kafka.ssl.truststore.type", "ssl_truststore_type", truststore_type),
    Option("kafka.ssl.keystore.location", "ssl_keystore_location", non_blank),
    Option("kafka.ssl.keystore.certificate.chain", "ssl_keystore_chain", pem, secret=True),
    Option("kafka.ssl.keystore.key", "ssl_keystore_key", private_key, secret=True),
    Option("kafka.ssl.keystore.type", "ssl_keystore_type", keystore_type),
    Option("kafka.ssl.key.password", "ssl_key_password", secret, secret=True),
    Option("kafka.ssl.endpoint.identification.algorithm", "ssl_check_host_name", host_name_check),
    Option("kafka.ssl.enabled.protocols", "ssl_protocols", protocols),
    Option("kafka.ssl.cipher.suites", "ssl_ciphers", ciphers),
)


def tls_settings(options: SecurityOptions) -> Tls | None:
    """The TLS settings, or ``None`` without TLS."""
    if not options.security_protocol.endswith("SSL"):
        return None
    return Tls(
        ca_file=options.ssl_truststore_location,
        ca_text=options.ssl_truststore_certificates,
        key_file=options.ssl_keystore_location,
        key_text=options.ssl_keystore_key,
        chain_text=options.ssl_keystore_chain,
        key_password=options.ssl_key_password,
        check_host_name=options.ssl_check_host_name,
        versions=options.ssl_protocols,
        ciphers=options.ssl_ciphers,
    )


BootstrapServers = tuple[tuple[str, int], ...]


def sasl_settings(options: SecurityOptions, bootstrap_servers: BootstrapServers) -> Sasl | None:
    """The SASL settings, or ``None`` without SASL.

    Raises:
        OptionError: the region of an Amazon MSK cluster is not known.
    """
    if options.sasl_mechanism is None:
        return None
    login = options.sasl_jaas
    username, password = options.sasl_username, options.sasl_password
    if isinstance(login, PasswordLogin):
        username, password = login.username, login.password
    elif _uses_msk_iam(options):
        iam = login if isinstance(login, IamLogin) else None
        return Sasl("OAUTHBEARER", token_provider=msk_iam.msk_iam_tokens(bootstrap_servers, iam))
    tokens = token_provider(options, _oauth_login(options))
    return Sasl(options.sasl_mechanism, username, password, tokens, options.sasl_kerberos_service)


def _oauth_login(options: SecurityOptions) -> OAuthLogin:
    return options.sasl_jaas if isinstance(options.sasl_jaas, OAuthLogin) else OAuthLogin()


def _uses_msk_iam(options: SecurityOptions) -> bool:
    return options.sasl_mechanism == msk_iam.MECHANISM or options.sasl_login_handler == msk_iam.LOGIN_HANDLER


def check_security(options: SecurityOptions, bootstrap_servers: BootstrapServers) -> None:
    """Checks that the security options fit together, are complete and name readable files.

    Raises:
        OptionError: they do not; the message names the option to change.
    """
    given = {row.name: getattr(options, row.field) != _DEFAULTS[row.field] for row in SECURITY_OPTIONS}
    _check_layer(options, "SSL", [name for name in given if name.startswith("kafka.ssl.") and given[name]])
    _check_layer(options, "SASL", [name for name in given if name.startswith("kafka.sasl.") and given[name]])
    for one, other in (
        ("kafka.ssl.truststore.location", "kafka.ssl.truststore.certificates"),
        ("kafka.ssl.keystore.location", "kafka.ssl.keystore.key"),
        ("kafka.sasl.jaas.config", "kafka.sasl.username"),
        ("kafka.sasl.jaas.config", "kafka.sasl.password"),
    ):
        if given[one] and given[other]:
            raise OptionError(f"Options '{one}' and '{other}' are set.", "Set only one of them.")
    _check_pair(given, "kafka.ssl.keystore.key", "kafka.ssl.keystore.certificate.chain")
    if given["kafka.ssl.key.password"] and not (
        given["kafka.ssl.keystore.key"] or given["kafka.ssl.keystore.location"]
    ):
        raise OptionError(
            "Option 'kafka.ssl.key.password' is set without a key.",
            "Set 'kafka.ssl.keystore.location' to the file of the key, or remove the password.",
        )
    if options.security_protocol.startswith("SASL"):
        _check_credentials(options, given)
        sasl_settings(options, bootstrap_servers)
    settings = tls_settings(options)
    if settings is not None:
        from spark_group_source.wire.tls_context import ssl_context

        ssl_context(settings)


_DEFAULTS = {field.name: field.default for field in fields(SecurityOptions)}


def _check_layer(options: SecurityOptions, layer: str, given: list[str]) -> None:
    if given and layer not in options.security_protocol:
        protocols = [protocol for protocol in PROTOCOLS if layer in protocol]
        raise OptionError(
            f"Option '{given[0]}' has no effect with 'kafka.security.protocol' {options.security_protocol}.",
            f"Set 'kafka.security.protocol' to {' or '.join(protocols)}, or remove '{given[0]}'.",
        )


def _check_pair(given: dict[str, bool], one: str, other: str) -> None:
    for here, missing in ((one, other), (other, one)):
        if given[here] and not given[missing]:
            raise OptionError(f"Option '{here}' is set without '{missing}'.", "Set both of them.")


def _check_credentials(options: SecurityOptions, given: dict[str, bool]) -> None:
    """Checks that the mechanism has all its options, and none of another mechanism."""
    chosen = options.sasl_mechanism
    if chosen is None:
        raise OptionError("Option 'kafka.sasl.mechanism' is missing.", f"Set it to one of {', '.join(MECHANISMS)}.")
    _check_login_module(options, chosen)
    allowed = ["kafka.sasl.mechanism"]
    if chosen in BY_PASSWORD:
        needed = ["kafka.sasl.jaas.config"] if options.sasl_jaas else ["kafka.sasl.username", "kafka.sasl.password"]
    elif _uses_msk_iam(options):
        needed = []
        allowed += ["kafka.sasl.jaas.config", "kafka.sasl.client.callback.handler.class"]
        allowed += ["kafka.sasl.login.callback.handler.class"] if chosen == "OAUTHBEARER" else []
    elif chosen == "OAUTHBEARER":
        needed = []
        check_oauth(options, _oauth_login(options))
        allowed += [FUNCTION] if given[FUNCTION] else [row.name for row in OAUTH_OPTIONS]
        allowed += [] if given[FUNCTION] else ["kafka.sasl.jaas.config", "kafka.sasl.login.callback.handler.class"]
    else:
        needed = ["kafka.sasl.kerberos.service.name"]
    for name in needed:
        if not given[name]:
            raise OptionError(f"Option '{name}' is missing.", f"Set it: 'kafka.sasl.mechanism' {chosen} needs it.")
    for name, here in given.items():
        if here and name.startswith("kafka.sasl.") and name not in [*needed, *allowed]:
            other = f"'{FUNCTION}'" if chosen == "OAUTHBEARER" and given[FUNCTION] and name != FUNCTION else ""
            other = other or f"'kafka.sasl.mechanism' {chosen}"
            raise OptionError(f"Option '{name}' has no effect with {other}.", "Remove it.")


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
            f"Set 'kafka.sasl.mechanism' to {' or '.join(mechanisms)}, or correct the login line.",
        )
    if chosen == "OAUTHBEARER" and isinstance(login, IamLogin) != _uses_msk_iam(options) and login != OAuthLogin():
        raise OptionError(
            "Options 'kafka.sasl.jaas.config' and 'kafka.sasl.login.callback.handler.class' do not fit together.",
            f"Settings of AWS in the login line need the {msk_iam.LOGIN_HANDLER}, and it allows no others.",
        )
