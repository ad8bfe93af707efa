"""From arguments, files and standard input to the JSON body of a request."""
