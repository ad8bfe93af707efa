"""Which of several engines of a model gets a job: where its prefix is cached, unless that one is busy. Pure."""
