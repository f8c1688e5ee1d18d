"""Which errors may end a query: those that are true, and do not heal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_group_source.errors import CommitFailed, DataLoss, GroupError, RetriableError, TopicError
from tests.simulation.troubles import BOUND

if TYPE_CHECKING:
    from tests.simulation.spark import Query
    from tests.simulation.truth import Truth


class Endings:
    """Judges the errors of one run by what its truth knows."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def may_end(self, query: Query, error: Exception) -> bool:
        """Whether a query may end by this error now."""
        if isinstance(error, DataLoss):
            return self._is_lost(query, error)
        if isinstance(error, CommitFailed):
            return self._fail_in_a_row(query)
        if self._was_never_permitted(query, error):
            return True
        if isinstance(error, GroupError):  # a static member, if a new coordinator knows only the former one
            moved = self.truth.membership.coordinated_since >= query.began
            return moved and "FENCED_INSTANCE_ID" in f"{error}"
        return isinstance(error, (RetriableError, TopicError)) and self._does_not_heal(query)

    def may_fail(self, query: Query) -> bool:
        """Whether its options let a query fail if commits fail, or records are lost: its member leaves first."""
        if "onCommitFailure" in query.options:
            return True
        return self.truth.data_may_be_lost and query.fails_on_data_loss

    def _is_lost(self, query: Query, error: Exception) -> bool:
        """Whether records are lost. A topic that exists again was deleted lately, or no broker says anything else."""
        if "does not exist any more" not in f"{error}" or self._gone(query):
            return self.truth.data_may_be_lost
        if self._deletion_is_known():
            return True
        return self.truth.data_may_be_lost and self.truth.recreated_at >= query.began

    def _deletion_is_known(self) -> bool:
        """Whether every broker that answers lags behind, or says that it does not know the topic."""
        kafka, troubles = self.truth.kafka, self.truth.troubles
        lagging = kafka._frozen
        if lagging and troubles.suffered(self.truth.run.now - BOUND, api="Metadata"):
            return True
        return any(kafka.brokers.keys() - view.fenced <= lagging.keys() for view in lagging.values())

    def _fail_in_a_row(self, query: Query) -> bool:
        """Whether two commits of a query suffered one after the other. It ends after the batch in which they did."""
        troubles = self.truth.troubles
        failed_from = max(self.truth.batches[query.name].planned_at, query.began)
        if not troubles.orderly(failed_from) or not troubles.calm_since(failed_from):
            return True
        if troubles.suffered(query.began, api="coordinates"):  # it sends several commits until that is over
            return True
        return troubles.suffered_in_a_row(f"{query.name}.", "OffsetCommit", query.began)

    def _was_never_permitted(self, query: Query, error: Exception) -> bool:
        """Whether a permission is missing that this process may never have had: then the first rejection is final."""
        if "AUTHORIZATION_FAILED" not in f"{error}":
            return False
        return query.process.name not in self.truth.permitted

    def _does_not_heal(self, query: Query) -> bool:
        """Whether no broker answers, or a topic does not exist: only when a query starts, or its run begins."""
        assert query.life is not None
        calm = self.truth.troubles.calm
        if query.life.process.name in self.truth.membership.joined:
            return query.life.available_now and not calm  # it needs the leaders then
        return bool(self._gone(query)) or not calm

    def _gone(self, query: Query) -> set[str]:
        """The topics of a query that do not exist now."""
        return query.topics - self.truth.kafka.logs.keys()
