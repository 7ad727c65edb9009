"""The direct fits of the calibrators, on the host: NumPy and SciPy in float64, on whole arrays."""
