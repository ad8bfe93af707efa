"""Chat templates of model files: strangers' programs, which make a prompt of a conversation in a disposable process."""
