"""Training runs on disk: the ledger, its records, imports, and the seeds of a run."""
