"""Other servers as engines, by token ids: what is requested of them, and how their faults are handled."""
