"""The APIs that are served, each with its requests, answers and errors: OpenAI's, and those of other servers."""
