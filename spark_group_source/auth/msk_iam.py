"""Settings of Amazon MSK with IAM."""

from __future__ import annotations

from dataclasses import dataclass

INSTALL = "pip install 'spark_group_source[msk]'"


@dataclass(frozen=True, slots=True)
class MskIam:
    """How tokens for a cluster in ``region`` are signed.

    Without ``profile`` and ``role_arn`` AWS's default chain finds the credentials. Roles are assumed in ``sts_region``,
    whose default is the region of AWS's configuration, or else ``region``. ``log_identity`` logs the identity once.
    """

    region: str
    profile: str | None = None
    role_arn: str | None = None
    role_session_name: str = "aws-msk-iam-auth"
    role_external_id: str | None = None
    sts_region: str | None = None
    log_identity: bool = False
