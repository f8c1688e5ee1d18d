"""Tokens of Amazon MSK with IAM."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.auth.msk_iam import INSTALL, MskIam
from spark_group_source.auth.tokens import Token
from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, DeadlineExceeded
from spark_group_source.wire.waiting import call_with_timeout

_TIMEOUT = "Check on this machine how long this takes: aws sts get-caller-identity"


@dataclass(frozen=True, slots=True)
class MskIamTokens:
    """Signs a token for each connection.

    Signing takes less than a millisecond. Nothing keeps a token, and no token outlives the credentials that signed it.
    """

    settings: MskIam

    @property
    def advice(self) -> str:
        """What the user should check if a broker rejects the token."""
        return (
            "Check that the IAM identity may use kafka-cluster:Connect on this cluster, that the cluster is in"
            f" {self.settings.region}, and the clock of this machine. To see the identity run: aws sts"
            " get-caller-identity"
        )

    def fetch(self, deadline: Deadline) -> Token:
        """Signs a token.

        Raises:
            AuthenticationFailed: AWS's signer is not installed, no credentials are found, or AWS rejects them.
            BrokerUnavailable: AWS gives no credentials now.
            DeadlineExceeded: AWS gave no credentials in time.
        """
        try:
            from spark_group_source.auth.aws_signer import signed_token
        except ImportError as error:
            raise AuthenticationFailed(
                f"AWS's signer is not installed in this Python: {error}.",
                f"On the driver and on each executor run: {INSTALL}",
            ) from None
        name = f"signed_token({self.settings})"
        try:
            return Token(call_with_timeout(lambda: signed_token(self.settings), deadline, name), {})
        except TimeoutError as error:
            raise DeadlineExceeded("AWS gave no credentials for Amazon MSK in time.", _TIMEOUT) from error

    def record_rejection(self, token: Token) -> None:
        """Does nothing, because nothing is kept here."""
