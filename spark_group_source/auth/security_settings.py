"""TLS and the sign-in that follow from the options, after the checks between the options."""

from __future__ import annotations

from spark_group_source.auth.broker_tls import BrokerTls
from spark_group_source.auth.security_checks import check_layers, check_sign_in
from spark_group_source.auth.security_options import BootstrapServers, SecurityOptions
from spark_group_source.auth.tls_options import check_tls
from spark_group_source.wire.security import SignIn, TlsLayer


def security_settings(
    options: SecurityOptions, bootstrap_servers: BootstrapServers
) -> tuple[TlsLayer | None, SignIn | None]:
    """Returns TLS and the sign-in of connections to brokers, ``None`` without them.

    Raises:
        OptionError: the options do not fit together, are not complete or name unusable files. Or the region of an
            Amazon MSK cluster is unknown. The message names the option to change.
    """
    check_layers(options)
    sasl = tls = None
    if options.protocol.startswith("SASL"):
        check_sign_in(options)
        from spark_group_source.auth.sasl_settings import sasl_sign_in  # imports modules that only SASL needs

        sasl = sasl_sign_in(options, bootstrap_servers)
    if options.protocol.endswith("SSL"):
        check_tls(options.tls)
        tls = BrokerTls(options.tls)
    return tls, sasl
