"""How an engine is reached that is not a thread of this process, and what happens when it is lost."""
