"""What lies on a disk, in any format: which files a model has, what they state, their tokenizer, what is wrong."""
