// openai-go against a real server: whole completions, streams, failures.
package main

import "os"

func main() {
	runAnswers()
	runStreams()
	runFailures()
	if failed > 0 {
		os.Exit(1)
	}
}
