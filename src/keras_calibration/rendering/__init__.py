"""Comparisons and monitor reports as text, Markdown, LaTeX and HTML."""
