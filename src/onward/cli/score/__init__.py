"""`onward score`: log-probabilities of texts that exist already."""
