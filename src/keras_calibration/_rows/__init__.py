"""Rows of a fit: read from tensors, data frames and data sets, and checked."""
