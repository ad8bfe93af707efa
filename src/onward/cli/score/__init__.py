"""`onward score`: log-probabilities of given texts."""
