package main

import (
	"context"
	"errors"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
)

func runStreams() {
	check("a stream with usage is the whole answer", wholeStream)
	check("n choices in a stream", streamOfChoices)
	check("a cancelled context and a closed stream end their work on the server", cancel)
	check("an error in the middle of a stream, and a lost connection, are errors", broken)
}

// joined reads a stream to its end and returns the text of each choice, the last chunk, and the stream's error.
func joined(stream *ssestream.Stream[openai.Completion]) (map[int64]string, openai.Completion, error) {
	texts, last := map[int64]*strings.Builder{}, openai.Completion{}
	for stream.Next() {
		last = stream.Current()
		for _, choice := range last.Choices {
			if texts[choice.Index] == nil {
				texts[choice.Index] = &strings.Builder{}
			}
			texts[choice.Index].WriteString(choice.Text)
		}
	}
	found := map[int64]string{}
	for index, text := range texts {
		found[index] = text.String()
	}
	return found, last, stream.Err()
}

func wholeStream() {
	params := greedy()
	whole := create(params)
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	texts, last, err := joined(client.Completions.NewStreaming(context.Background(), params))
	require(err == nil && texts[0] == whole.Choices[0].Text, texts)
	require(len(last.Choices) == 0 && last.Usage.CompletionTokens == whole.Usage.CompletionTokens, last)
	require(len(last.JSON.ExtraFields) == 0, last)
}

func streamOfChoices() {
	params := greedy()
	params.N, params.Seed, params.Temperature = openai.Int(3), openai.Int(3), openai.Float(1)
	whole := create(params)
	texts, _, err := joined(client.Completions.NewStreaming(context.Background(), params))
	require(err == nil && len(texts) == 3, texts)
	for index, choice := range whole.Choices {
		require(texts[int64(index)] == choice.Text, texts)
	}
}

func cancel() {
	params := greedy()
	params.MaxTokens, params.N = openai.Int(1900), openai.Int(16)
	endless := option.WithJSONSet("ignore_eos", true)
	ctx, stop := context.WithCancel(context.Background())
	stream := client.Completions.NewStreaming(ctx, params, endless)
	require(stream.Next() && stream.Next(), stream.Err())
	stop()
	for stream.Next() {
	}
	require(errors.Is(stream.Err(), context.Canceled), stream.Err())
	waitUntilIdle()
	stream = client.Completions.NewStreaming(context.Background(), params, endless)
	require(stream.Next(), stream.Err())
	require(stream.Close() == nil, "close")
	waitUntilIdle()
}

func broken() {
	params := greedy()
	params.MaxTokens = openai.Int(999)
	faulty := at("faults", "/error/x", "any", 0)
	_, _, err := joined(faulty.Completions.NewStreaming(context.Background(), params))
	require(err != nil && strings.Contains(err.Error(), "broke"), err)
	cut := at("faults", "/cut/x", "any", 0)
	_, _, err = joined(cut.Completions.NewStreaming(context.Background(), params))
	require(err != nil, "no error of a lost connection")
}
