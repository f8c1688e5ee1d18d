"""A deterministic simulation of the delivery contract: ``python -m tests.simulation --help``."""
