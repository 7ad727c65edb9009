"""A model's graph: the source of its logit, its outputs, and its head."""
