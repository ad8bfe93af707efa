"""Who answers a CompletionRequest."""
