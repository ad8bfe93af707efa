"""Who answers: a server over HTTP, or a model in this process. Both look the same from above."""
