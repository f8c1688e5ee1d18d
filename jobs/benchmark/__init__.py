"""Speed of ``format("kafka-group")`` beside Spark's own ``format("kafka")``; run it as ``python jobs/benchmark``."""
