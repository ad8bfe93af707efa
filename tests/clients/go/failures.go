package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func runFailures() {
	check("errors of the server: 400, 401, 403, 404, with param, type and code", own)
	check("errors by their status, with param, type and code", statuses)
	check("retries: 429 twice with retry-after-ms, counted in the header", func() { retried("retry", "0", "1", "2") })
	check("retries: 503 with Retry-After", func() { retried("busy", "0", "1") })
	check("no retry where x-should-retry is false", notRetried)
}

// refused returns the error that a request must end with.
func refused(from openai.Client, params openai.CompletionNewParams, options ...option.RequestOption) *openai.Error {
	_, err := from.Completions.New(context.Background(), params, options...)
	var found *openai.Error
	require(errors.As(err, &found), err)
	return found
}

func own() {
	params := greedy()
	params.Temperature = openai.Float(9)
	bad := refused(client, params)
	require(bad.StatusCode == 400 && bad.Param == "temperature" && bad.Type == "invalid_request_error", bad)
	require(strings.HasPrefix(bad.Response.Header.Get("x-request-id"), "req_"), bad.Response.Header)
	require(refused(client, greedy(), option.WithJSONSet("foo", 1)).StatusCode == 400, "unknown field")
	params = greedy()
	params.Model = "nope"
	require(refused(client, params).Code == "model_not_found", "model")
	stranger := refused(at("keyed", "", "wrong", 0), greedy())
	require(stranger.StatusCode == 401 && stranger.Code == "invalid_api_key", stranger)
	keyed := at("keyed", "", os.Getenv("ONWARD_CLIENT_KEY"), 0)
	must(keyed.Completions.New(context.Background(), greedy()))
	other := refused(client, greedy(), option.WithHeader("Origin", "https://elsewhere.example"))
	require(other.StatusCode == 403, other)
}

func statuses() {
	for _, status := range []int{400, 401, 403, 404, 413, 422, 429, 500, 503} {
		found := refused(at("faults", fmt.Sprintf("/status/%d", status), "any", 2), greedy())
		require(found.StatusCode == status && found.Code == "on_purpose", found)
		require(found.Param == "prompt" && found.Type == "test_error", found)
	}
}

func retried(fault string, counters ...string) {
	name := fmt.Sprint("go", rand.Int63())
	patient := at("faults", "/"+fault+"/"+name, "any", 2)
	must(patient.Completions.New(context.Background(), greedy()))
	seen := get(urls["faults"] + "/seen/" + name)
	require(seen == `["`+strings.Join(counters, `", "`)+`"]`, seen)
}

func notRetried() {
	name := fmt.Sprint("go", rand.Int63())
	require(refused(at("faults", "/stop/"+name, "any", 2), greedy()).StatusCode == 429, name)
	require(get(urls["faults"]+"/seen/"+name) == `["0"]`, name)
}
