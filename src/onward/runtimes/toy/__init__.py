"""A runtime without weights: deterministic and instant, for tests, documentation and demonstrations."""
