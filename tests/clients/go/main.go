// openai-go against a real server: whole completions, streams, batches, failures.
package main

import "os"

func main() {
	runAnswers()
	runStreams()
	runBatches()
	runFailures()
	if failed > 0 {
		os.Exit(1)
	}
}
