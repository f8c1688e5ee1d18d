"""The position of a query with ``format("kafka")``, from its checkpoint."""
