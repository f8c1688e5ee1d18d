"""Options of Amazon MSK with IAM: the settings of Java's library aws-msk-iam-auth, and the region of the cluster."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_group_source.auth.msk_iam import INSTALL, MskIamTokens
from spark_group_source.errors import OptionError
from spark_group_source.spelling import completed_or_nearest

MECHANISM = "AWS_MSK_IAM"
LOGIN_HANDLER = "IAMOAuthBearerLoginCallbackHandler"
"""Java's class for the same tokens in the mechanism OAUTHBEARER."""
CLIENT_HANDLERS = ("IAMClientCallbackHandler", LOGIN_HANDLER)

_REGION_IN_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z]{2,4}(?:-[a-z]+)+-\d+)\.")
_FIELDS = {
    "awsProfileName": "profile",
    "awsRoleArn": "role_arn",
    "awsRoleSessionName": "role_session_name",
    "awsRoleExternalId": "role_external_id",
    "awsStsRegion": "sts_region",
}
_ONLY_WITH_ROLE = ("awsRoleSessionName", "awsRoleExternalId", "awsStsRegion")
_FLAGS = ("awsDebugCreds", "awsAddDefaultProviders")
_RETRIES = "the source itself retries"
_KEYS = "a profile holds keys: name it with awsProfileName"
_UNSUPPORTED = {
    "awsMaxRetries": _RETRIES,
    "awsMaxBackOffTimeMs": _RETRIES,
    "awsMskRegionProvider": "it names a Java class: set the environment variable AWS_REGION on the driver",
    "awsShouldUseFips": "AWS's library reads the environment variable AWS_USE_FIPS_ENDPOINT",
    "awsRoleAccessKeyId": _KEYS,
    "awsRoleSecretAccessKey": _KEYS,
    "awsRoleSessionToken": _KEYS,
}


@dataclass(frozen=True, slots=True)
class IamLogin:
    """The login of an IAMLoginModule; or of an OAuthBearerLoginModule, which may have the same settings."""

    module: str
    settings: Mapping[str, str]


def check_signer() -> None:
    """Raises ValueError if AWS's signer is not installed; the message completes "It must be"."""
    if importlib.util.find_spec("aws_msk_iam_sasl_signer") is None:
        raise ValueError(
            f"another one, unless you install AWS's signer on the driver and the executors: {INSTALL} (or"
            " aws-msk-iam-sasl-signer-python)"
        )


def login(module: str, settings: Mapping[str, str]) -> IamLogin:
    """Checks the settings of a JAAS config, and returns the login.

    Raises:
        ValueError: a setting is unknown, not supported or without effect; the message completes "It must be".
    """
    for name in settings:
        if name in _UNSUPPORTED:
            raise ValueError(f"a JAAS config without {name}, because {_UNSUPPORTED[name]}")
        if name not in _FIELDS and name not in _FLAGS:
            near = completed_or_nearest(name, [*_FIELDS, *_FLAGS])
            raise ValueError(
                f"a JAAS config without the unknown setting {name}"
                + (f" (did you mean {near}?)" if near else f". Known are {', '.join([*_FIELDS, *_FLAGS])}")
            )
    for name in _FLAGS:
        if settings.get(name, "true").lower() not in ("true", "false"):
            raise ValueError(f"a JAAS config in which {name} is true or false")
    if settings.get("awsAddDefaultProviders", "false").lower() == "true":
        raise ValueError(
            "a JAAS config without awsAddDefaultProviders=true, because the source never falls back to the default"
            " credentials if the profile or the role gives none"
        )
    if "awsProfileName" in settings and "awsRoleArn" in settings:
        raise ValueError(
            "a JAAS config with awsProfileName or awsRoleArn, not both. To assume a role with the keys of a profile,"
            " set role_arn and source_profile in a profile of ~/.aws/config, and name that profile"
        )
    for name in _ONLY_WITH_ROLE:
        if name in settings and "awsRoleArn" not in settings:
            raise ValueError(f"a JAAS config without {name}, because it has no effect without awsRoleArn")
    return IamLogin(module, settings)


def msk_iam_tokens(bootstrap_servers: tuple[tuple[str, int], ...], login: IamLogin | None) -> MskIamTokens:
    """Returns the provider of tokens for a cluster.

    Raises:
        OptionError: the region of the cluster is not known.
    """
    settings = {} if login is None else login.settings
    fields = {field: settings[name] for name, field in _FIELDS.items() if name in settings}
    return MskIamTokens(
        region=_region([host for host, _ in bootstrap_servers], fields.get("profile")),
        log_identity=settings.get("awsDebugCreds", "").lower() == "true",
        **fields,
    )


def _region(hosts: list[str], profile: str | None) -> str:
    """The region of the cluster. It is looked up on the driver only, and travels with the tasks."""
    found = sorted({match[1] for host in hosts if (match := _REGION_IN_HOST.search(host.lower() + "."))})
    if len(found) > 1:
        raise OptionError(
            f"Option 'kafka.bootstrap.servers' has brokers in the regions {' and '.join(found)}.",
            "List the brokers of one cluster.",
        )
    if found:
        return found[0]
    from spark_group_source.auth.aws_signer import configured_region  # imports AWS's library, which takes long

    region = os.environ.get("AWS_REGION") or configured_region(profile)
    if not region:
        raise OptionError(
            "The region of the Amazon MSK cluster is unknown: no name in 'kafka.bootstrap.servers' contains it.",
            "List the brokers by the names that MSK gives them, or set the environment variable AWS_REGION on the"
            " driver.",
        )
    return region
