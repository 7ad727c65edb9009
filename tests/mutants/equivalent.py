"""Faults of a sample that no test can notice, or that none needs to: the name → why."""

EQUIVALENT: dict[str, str] = {}
