"""A team: its limits, ledger, files and batches. Its store is optional: without one, none of this is imported."""
