"""Output for people and programs: text, documents, colours, statistics, errors."""
