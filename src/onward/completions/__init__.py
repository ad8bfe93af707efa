"""The legacy Completions API: requests become jobs, engine events become partial choices, these become responses."""
