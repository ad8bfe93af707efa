"""What a completion means: requests become jobs, engine events become deltas; in no API's words or shapes."""
