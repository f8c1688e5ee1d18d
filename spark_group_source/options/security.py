"""Options that say how connections are encrypted and who the client is: their table, checks and values.

Names and meanings are those of Kafka's Java client; ``kafka.sasl.username`` and ``kafka.sasl.password`` are
librdkafka's: unlike Java's line Spark redacts a password where it shows options.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.errors import OptionError
from spark_group_source.options import jaas
from spark_group_source.options.option import Option
from spark_group_source.options.security_parsers import (
    BY_PASSWORD,
    MECHANISMS,
    PROTOCOLS,
    ciphers,
    host_name_check,
    keystore_type,
    mechanism,
    pem,
    private_key,
    protocol,
    protocols,
    secret,
    truststore_type,
)
from spark_group_source.options.value_parsers import importable_function, non_blank
from spark_group_source.secret import Secret
from spark_group_source.wire import tls_context
from spark_group_source.wire.settings import Sasl, Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """The fields of :data:`SECURITY_OPTIONS`. PEM texts have real line ends."""

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_jaas: tuple[str, Secret] | None = None
    sasl_username: str | None = None
    sasl_password: Secret | None = None
    sasl_token_provider: str | None = None
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
    Option("kafka.security.protocol", "security_protocol", protocol, "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."),
    Option("kafka.sasl.mechanism", "sasl_mechanism", mechanism, f"With SASL: {', '.join(MECHANISMS)}."),
    Option("kafka.sasl.username", "sasl_username", non_blank, "User name for PLAIN and SCRAM."),
    Option("kafka.sasl.password", "sasl_password", secret, "Its password.", secret=True),
    Option(
        "kafka.sasl.jaas.config", "sasl_jaas", jaas.credentials, "User name and password in Java's form.", secret=True
    ),
    Option(
        "kafka.sasl.oauthbearer.token.provider",
        "sasl_token_provider",
        importable_function,
        "module:function that returns OAUTHBEARER tokens.",
    ),
    Option(
        "kafka.sasl.kerberos.service.name", "sasl_kerberos_service", non_blank, "With GSSAPI: the brokers' service."
    ),
    Option(
        "kafka.ssl.truststore.location",
        "ssl_truststore_location",
        non_blank,
        "PEM file of authorities to trust.",
    ),
    Option("kafka.ssl.truststore.certificates", "ssl_truststore_certificates", pem, "The same as text.", secret=True),
    Option("kafka.ssl.truststore.type", "ssl_truststore_type", truststore_type, "PEM is what can be read."),
    Option(
        "kafka.ssl.keystore.location",
        "ssl_keystore_location",
        non_blank,
        "PEM file of the client's key and chain.",
    ),
    Option(
        "kafka.ssl.keystore.certificate.chain",
        "ssl_keystore_chain",
        pem,
        "The client's certificate chain as text.",
        secret=True,
    ),
    Option(
        "kafka.ssl.keystore.key", "ssl_keystore_key", private_key, "Its encrypted private key as text.", secret=True
    ),
    Option("kafka.ssl.keystore.type", "ssl_keystore_type", keystore_type, "PEM is what can be read."),
    Option("kafka.ssl.key.password", "ssl_key_password", secret, "Password of the private key.", secret=True),
    Option(
        "kafka.ssl.endpoint.identification.algorithm",
        "ssl_check_host_name",
        host_name_check,
        "Empty: certificates of any host will do.",
    ),
    Option("kafka.ssl.enabled.protocols", "ssl_protocols", protocols, "Versions of TLS."),
    Option("kafka.ssl.cipher.suites", "ssl_ciphers", ciphers, "Cipher suites of TLS 1.2."),
)


def tls_settings(options: SecurityOptions) -> Tls | None:
    """How connections are encrypted."""
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


def sasl_settings(options: SecurityOptions) -> Sasl | None:
    """Who the client says it is."""
    if options.sasl_mechanism is None:
        return None
    username, password = options.sasl_jaas or (options.sasl_username, options.sasl_password)
    return Sasl(options.sasl_mechanism, username, password, options.sasl_token_provider, options.sasl_kerberos_service)


def check_security(options: SecurityOptions) -> None:
    """Refuses what contradicts itself or is missing, and files that cannot be read.

    Raises:
        OptionError: with the option to change.
    """
    given = {each.name: getattr(options, each.field) != _DEFAULTS[each.field] for each in SECURITY_OPTIONS}
    _check_layer(options, "SSL", [name for name in given if name.startswith("kafka.ssl.") and given[name]])
    _check_layer(options, "SASL", [name for name in given if name.startswith("kafka.sasl.") and given[name]])
    for one, other in (
        ("kafka.ssl.truststore.location", "kafka.ssl.truststore.certificates"),
        ("kafka.ssl.keystore.location", "kafka.ssl.keystore.key"),
        ("kafka.sasl.jaas.config", "kafka.sasl.username"),
        ("kafka.sasl.jaas.config", "kafka.sasl.password"),
    ):
        if given[one] and given[other]:
            raise OptionError(f"Both options '{one}' and '{other}' are given.", "Give one of them.")
    _check_pair(given, "kafka.ssl.keystore.key", "kafka.ssl.keystore.certificate.chain")
    if given["kafka.ssl.key.password"] and not (
        given["kafka.ssl.keystore.key"] or given["kafka.ssl.keystore.location"]
    ):
        raise OptionError(
            "Option 'kafka.ssl.key.password' is given without a key.",
            "Name the key's file in 'kafka.ssl.keystore.location', or leave the password out.",
        )
    if options.security_protocol.startswith("SASL"):
        _check_credentials(options, given)
    settings = tls_settings(options)
    if settings is not None:
        tls_context.ssl_context(settings)


_DEFAULTS = {name: each.default for name, each in SecurityOptions.__dataclass_fields__.items()}


def _check_layer(options: SecurityOptions, layer: str, given: list[str]) -> None:
    if given and layer not in options.security_protocol:
        fitting = [each for each in PROTOCOLS if layer in each]
        raise OptionError(
            f"Option '{given[0]}' means nothing with 'kafka.security.protocol' {options.security_protocol}.",
            f"Set that to {' or '.join(fitting)}, or leave this out.",
        )


def _check_pair(given: dict[str, bool], one: str, other: str) -> None:
    for here, missing in ((one, other), (other, one)):
        if given[here] and not given[missing]:
            raise OptionError(f"Option '{here}' is given without '{missing}'.", "Give both of them.")


def _check_credentials(options: SecurityOptions, given: dict[str, bool]) -> None:
    """Each mechanism has all it needs, and nothing that is another's."""
    chosen = options.sasl_mechanism
    if chosen is None:
        raise OptionError("Option 'kafka.sasl.mechanism' is missing.", f"Set it to one of {', '.join(MECHANISMS)}.")
    if chosen in BY_PASSWORD:
        needed = ["kafka.sasl.jaas.config"] if options.sasl_jaas else ["kafka.sasl.username", "kafka.sasl.password"]
    elif chosen == "OAUTHBEARER":
        needed = ["kafka.sasl.oauthbearer.token.provider"]
    else:
        needed = ["kafka.sasl.kerberos.service.name"]
    for name in needed:
        if not given[name]:
            raise OptionError(f"Option '{name}' is missing.", f"'kafka.sasl.mechanism' {chosen} needs it.")
    for name, here in given.items():
        if here and name.startswith("kafka.sasl.") and name not in [*needed, "kafka.sasl.mechanism"]:
            raise OptionError(f"Option '{name}' means nothing with 'kafka.sasl.mechanism' {chosen}.", "Leave it out.")
