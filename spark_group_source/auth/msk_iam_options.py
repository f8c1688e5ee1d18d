"""Options of Amazon MSK with IAM: the settings of Java's library aws-msk-iam-auth, and the region of the cluster."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_group_source.auth.msk_iam import INSTALL, MskIam
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
_KNOWN = (*_FIELDS, *_FLAGS)
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
    """The login of an IAMLoginModule, or of an OAuthBearerLoginModule with the same settings."""

    module: str
    settings: Mapping[str, str]


def check_signer() -> None:
    """Checks that AWS's signer is installed.

    Raises:
        ValueError: the signer is not installed; the message is the rest of a sentence that begins with "It must be".
    """
    if importlib.util.find_spec("aws_msk_iam_sasl_signer") is None:
        raise ValueError(
            f"another one, unless you install AWS's signer on the driver and the executors: {INSTALL} (or"
            " aws-msk-iam-sasl-signer-python)"
        )


def iam_login(module: str, settings: Mapping[str, str]) -> IamLogin:
    """Builds the login for an IAMLoginModule, or for an OAuthBearerLoginModule with the same settings.

    Raises:
        ValueError: a setting is unknown, not supported or without effect; the message is the rest of a sentence that
            begins with "It must be".
    """
    for name in settings:
        _check_name(name)
    for name in _FLAGS:
        if settings.get(name, "true").lower() not in ("true", "false"):
            raise ValueError(f"a JAAS config in which {name} is true or false")
    _check_providers(settings)
    if "awsRoleArn" not in settings:
        _check_no_settings_of_a_role(settings)
    return IamLogin(module, settings)


def _check_name(name: str) -> None:
    if name in _KNOWN:
        return
    if name in _UNSUPPORTED:
        raise ValueError(f"a JAAS config without {name}, because {_UNSUPPORTED[name]}")
    near = completed_or_nearest(name, _KNOWN)
    if near:
        raise ValueError(f"a JAAS config without the unknown setting {name} (did you mean {near}?)")
    raise ValueError(f"a JAAS config without the unknown setting {name}. Known are {', '.join(_KNOWN)}")


def _check_providers(settings: Mapping[str, str]) -> None:
    """Checks that only one provider gives the credentials."""
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


def _check_no_settings_of_a_role(settings: Mapping[str, str]) -> None:
    for name in _ONLY_WITH_ROLE:
        if name in settings:
            raise ValueError(f"a JAAS config without {name}, because it has no effect without awsRoleArn")


def msk_iam(bootstrap_servers: tuple[tuple[str, int], ...], settings: Mapping[str, str]) -> MskIam:
    """Returns how tokens for a cluster are signed.

    Args:
        settings: settings in the JAAS config, by name.

    Raises:
        OptionError: the region of the cluster is not known.
    """
    fields = {}
    for name, field in _FIELDS.items():
        if name in settings:
            fields[field] = settings[name]
    return MskIam(
        region=_region(bootstrap_servers, fields.get("profile")),
        log_identity=settings.get("awsDebugCreds", "").lower() == "true",
        **fields,
    )


def _region(bootstrap_servers: tuple[tuple[str, int], ...], profile: str | None) -> str:
    """The region of the cluster. Only the driver looks it up, and it travels with the tasks."""
    found = set()
    for host, _ in bootstrap_servers:
        match = _REGION_IN_HOST.search(host.lower() + ".")
        if match is not None:
            found.add(match[1])
    if len(found) > 1:
        raise OptionError(
            f"Option 'kafka.bootstrap.servers' has brokers in the regions {' and '.join(sorted(found))}.",
            "List the brokers of one cluster.",
        )
    if found:
        return found.pop()
    region = os.environ.get("AWS_REGION")
    if not region:
        from spark_group_source.auth.aws_signer import configured_region  # imports AWS's library, which takes long

        region = configured_region(profile)
    if not region:
        raise OptionError(
            "The region of the Amazon MSK cluster is unknown: no name in 'kafka.bootstrap.servers' contains it.",
            "List the brokers by the names that MSK gives them, or set the environment variable AWS_REGION on the"
            " driver.",
        )
    return region
