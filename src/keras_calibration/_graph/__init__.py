"""A model's graph: where its logit comes from, its outputs, and the head in it."""
