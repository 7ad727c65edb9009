"""Two pipelines compared: the question, the runs that count, the figures and the verdict."""
