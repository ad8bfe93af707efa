"""A team: who may use how much, who used what. Its store is optional: without one, none of this is imported."""
