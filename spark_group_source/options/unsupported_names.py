"""The error for an option that this source does not support, with the reason and an alternative.

Spark's own source and Kafka's clients ignore most of these options silently.
"""

from __future__ import annotations

from spark_group_source.errors import OptionError
from spark_group_source.options.foreign_names import FAMILIES, PREFIXES, Family
from spark_group_source.spelling import letters
from spark_group_source.text import quoted


def _family_of_each_name() -> dict[str, Family]:
    families = {}
    for family in FAMILIES:
        for name in family.names.split():
            families[name] = family
    return families


UNSUPPORTED = _family_of_each_name()

_BY_LETTERS = {letters(name): family for name, family in UNSUPPORTED.items()}
"""``enable_auto_commit`` and ``enableAutoCommit`` are other spellings of ``enable.auto.commit``."""


def unsupported_option(key: str) -> OptionError | None:
    """The error for an unsupported option. The error does not show the value, which may be a secret."""
    family = _BY_LETTERS.get(letters(key))
    if family is None:
        family = _family_by_prefix(key)
    if family is None:
        return None
    return OptionError(f"Option {quoted(key)} is not supported: {family.reason}.", family.action)


def _family_by_prefix(key: str) -> Family | None:
    name = key.lower().replace("_", ".").removeprefix("kafka.")
    for prefix, family in PREFIXES.items():
        if name.startswith(prefix):
            return family
    return None
