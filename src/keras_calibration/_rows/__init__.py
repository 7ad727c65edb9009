"""Rows on their way into a fit: read from tensors, frames and data sets, and checked."""
