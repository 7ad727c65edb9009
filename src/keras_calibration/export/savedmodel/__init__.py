"""SavedModels: written, refreshed, and read in part. TensorFlow only."""
