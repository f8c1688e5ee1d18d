"""Signs tokens of Amazon MSK with AWS's signer, and finds credentials with AWS's library (the extra ``msk``)."""

from __future__ import annotations

import logging
import threading
from typing import Any

from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from botocore.config import Config
from botocore.credentials import CredentialProvider, DeferredRefreshableCredentials, RefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError, ProfileNotFound
from botocore.session import Session

from spark_group_source.auth.msk_iam import MskIam
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable
from spark_group_source.text import printable

log = logging.getLogger(__name__)

_CREDENTIALS = (
    "Give the driver and each executor an IAM role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY there, or name"
    " a profile in 'kafka.sasl.jaas.config': awsProfileName=\"...\""
)
_PROFILE = (
    "Correct awsProfileName in 'kafka.sasl.jaas.config' or AWS_PROFILE, or add the profile to ~/.aws/config on the"
    " driver and each executor."
)
_FINAL = frozenset(
    ("AccessDenied", "InvalidClientTokenId", "RegionDisabledException", "SignatureDoesNotMatch", "ValidationError")
)
"""Errors of AWS's Security Token Service that only a change of settings corrects."""

_renewing: dict[MskIam, RefreshableCredentials] = {}
"""The credentials of this process that botocore renews before their end."""

_logged: set[str] = set()
"""The access keys whose identity this process has logged."""


def signed_token(settings: MskIam) -> str:
    """Returns a token that is valid for 15 minutes.

    Raises:
        AuthenticationFailed: no credentials are found, or AWS rejects them.
        BrokerUnavailable: AWS gives no credentials now.
    """
    try:
        return _signed_token(settings)
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise AuthenticationFailed(
            f"No AWS credentials for Amazon MSK were found: {_text(error)}.", _CREDENTIALS
        ) from error
    except ProfileNotFound as error:
        raise AuthenticationFailed(f"AWS has no such profile on this machine: {_text(error)}.", _PROFILE) from error
    except Exception as error:  # AWS's library also runs other programs, and may raise any exception
        _renewing.pop(settings, None)
        happened = f"AWS gave no credentials for Amazon MSK: {_text(error)}."
        if _is_final(error):
            raise AuthenticationFailed(happened, _advice(settings)) from error
        raise BrokerUnavailable(happened, _advice(settings)) from error


def _is_final(error: Exception) -> bool:
    """Whether a retry with the same settings would get the same error."""
    if not isinstance(error, ClientError):
        return False
    return error.response.get("Error", {}).get("Code") in _FINAL


def _text(error: Exception) -> str:
    return str(error).rstrip(".")


def configured_region(profile: str | None) -> str | None:
    """Returns the region in AWS's configuration on this machine, for example in ``~/.aws/config``."""
    try:
        region = Session(profile=profile).get_config_variable("region")
    except BotoCoreError:  # the first token reports it
        return None
    if region is None:
        return None
    return str(region)


def _signed_token(settings: MskIam) -> str:
    credentials = _credentials(settings)
    if credentials is None:
        raise NoCredentialsError
    # Frozen, because a renewal in the middle of signing would give a wrong signature.
    frozen = credentials.get_frozen_credentials()
    if settings.log_identity and frozen.access_key not in _logged:
        _logged.add(frozen.access_key)
        threading.Thread(target=_log_identity, args=(settings, frozen), name="aws-identity", daemon=True).start()
    signer = MSKAuthTokenProvider.generate_auth_token_from_credentials_provider
    return str(signer(settings.region, _Provider(frozen))[0])


class _Provider(CredentialProvider):  # type: ignore[misc]
    """Credentials in the form that AWS's signer accepts."""

    def __init__(self, credentials: Any) -> None:
        super().__init__()
        self._credentials = credentials

    def load(self) -> Any:
        return self._credentials


def _credentials(settings: MskIam) -> Any:
    """Returns botocore's credentials, or ``None`` if it finds none."""
    found = _renewing.get(settings)
    if found is not None:
        return found
    if settings.role_arn is not None:
        found = DeferredRefreshableCredentials(lambda: _assume_role(settings), "assume-role")
    else:
        found = _session(settings).get_credentials()
    if isinstance(found, RefreshableCredentials):
        _renewing[settings] = found
    # Other credentials are looked up for each token, because a tool may have renewed their file.
    return found


def _session(settings: MskIam) -> Any:
    """A session whose requests for credentials go to ``sts_region``, or to the configured region, or to the cluster's
    region."""
    session = Session(profile=settings.profile)
    region = settings.sts_region
    if not region:
        region = session.get_config_variable("region")
    if not region:
        region = settings.region
    session.set_config_variable("region", region)
    return session


def _assume_role(settings: MskIam) -> dict[str, str]:
    """Returns credentials of the role, in the form of botocore's refreshable credentials."""
    client = _session(settings).create_client("sts")
    request = {"RoleArn": settings.role_arn, "RoleSessionName": settings.role_session_name}
    if settings.role_external_id is not None:
        request["ExternalId"] = settings.role_external_id
    credentials = client.assume_role(**request)["Credentials"]
    return {
        "access_key": credentials["AccessKeyId"],
        "secret_key": credentials["SecretAccessKey"],
        "token": credentials["SessionToken"],
        "expiry_time": credentials["Expiration"].isoformat(),
    }


def _advice(settings: MskIam) -> str:
    if settings.role_arn is None:
        return "Check the credentials with: aws sts get-caller-identity"
    return f"Check that this machine's IAM identity may assume awsRoleArn ({settings.role_arn})."


def _log_identity(settings: MskIam, credentials: Any) -> None:
    """Logs the identity, as ``awsDebugCreds`` does in Java.

    Caller: a separate thread, because AWS's Security Token Service may be unreachable although the credentials are
    good.
    """
    try:
        client = _session(settings).create_client(
            "sts",
            aws_access_key_id=credentials.access_key,
            aws_secret_access_key=credentials.secret_key,
            aws_session_token=credentials.token,
            config=Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 1}),
        )
        log.info("the AWS credentials for Amazon MSK belong to %s", client.get_caller_identity()["Arn"])
    except Exception as error:  # AWS's library may raise any exception
        log.info("cannot determine whose AWS credentials for Amazon MSK are used: %s", printable(str(error)))
