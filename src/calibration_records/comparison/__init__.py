"""Comparison of two pipelines: the question, the runs that count, the figures and the verdict."""
