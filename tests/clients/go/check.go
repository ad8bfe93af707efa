package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"runtime/debug"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

const prompt = "Say this is a test"

var (
	urls   = readURLs()
	failed = 0
)

// check prints the result of one check as a line of JSON, which tests/clients/report.py reads.
func check(name string, body func()) {
	result := struct {
		Check  string `json:"check"`
		OK     bool   `json:"ok"`
		Detail string `json:"detail,omitempty"`
	}{Check: name, OK: true}
	func() {
		defer func() {
			if problem := recover(); problem != nil {
				failed++
				result.OK = false
				result.Detail = fmt.Sprintf("%v\n%s", problem, debug.Stack())
			}
		}()
		body()
	}()
	line, _ := json.Marshal(result)
	fmt.Println(string(line))
}

func require(holds bool, detail any) {
	if !holds {
		panic(fmt.Sprintf("assertion failed: %+v", detail))
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// at returns a client of a server. path is what comes before /v1.
func at(server, path, key string, retries int) openai.Client {
	return openai.NewClient(
		option.WithBaseURL(urls[server]+path+"/v1"), option.WithAPIKey(key), option.WithMaxRetries(retries))
}

func get(url string) string {
	response := must(http.Get(url))
	defer response.Body.Close()
	return string(must(io.ReadAll(response.Body)))
}

// waitUntilIdle waits until the server computes nothing, as it must soon after a client has left.
func waitUntilIdle() {
	idle := regexp.MustCompile(`(?m)^onward_engine_running\{model="toy"\} 0(\.0)?$`)
	for attempt := 0; attempt < 1000; attempt++ {
		if idle.MatchString(get(urls["default"] + "/metrics")) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	panic("the server still works for a client that has left")
}

func readURLs() map[string]string {
	found := map[string]string{}
	if err := json.Unmarshal([]byte(os.Getenv("ONWARD_CLIENT_URLS")), &found); err != nil {
		panic(err)
	}
	return found
}
