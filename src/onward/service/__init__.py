"""A team: its limits, its ledger, its files and batches. Its store is optional: without one, none of this is imported."""
