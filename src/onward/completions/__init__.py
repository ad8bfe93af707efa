"""What the legacy API means: request → jobs, events → partial choices, partial choices → answers."""
