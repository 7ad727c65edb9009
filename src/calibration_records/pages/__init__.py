"""Comparisons and monitor reports as HTML pages."""
