"""Fits of the calibrators on the host, in NumPy and SciPy, in float64, from whole arrays."""
