package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
)

func runBatches() {
	check("files and a batch, to its results", batchOfLines)
}

type line struct {
	CustomID string `json:"custom_id"`
	Response struct {
		StatusCode int               `json:"status_code"`
		Body       openai.Completion `json:"body"`
		Seed       int64             `json:"seed"`
	} `json:"response"`
}

func batchOfLines() {
	ctx, client := context.Background(), at("batches", "", "any", 0)
	text := ""
	for place, name := range []string{"a", "b", "c"} {
		temperature := 1
		if place == 1 {
			temperature = 9
		}
		text += fmt.Sprintf(`{"custom_id": "%s", "method": "POST", "url": "/v1/completions", "body": {"model": "toy", `+
			`"prompt": "Say %s", "max_tokens": 3, "temperature": %d}}`+"\n", name, name, temperature)
	}
	file := must(client.Files.New(ctx, openai.FileNewParams{
		File: openai.File(strings.NewReader(text), "in.jsonl", "application/jsonl"), Purpose: openai.FilePurposeBatch,
	}))
	require(file.Bytes == int64(len(text)) && file.Filename == "in.jsonl", file)
	batch := must(client.Batches.New(ctx, openai.BatchNewParams{
		InputFileID:      file.ID,
		Endpoint:         openai.BatchNewParamsEndpointV1Completions,
		CompletionWindow: openai.BatchNewParamsCompletionWindow24h,
	}))
	for attempt := 0; batch.Status != openai.BatchStatusCompleted; attempt++ {
		require(attempt < 1000, batch)
		time.Sleep(20 * time.Millisecond)
		batch = must(client.Batches.Get(ctx, batch.ID))
	}
	require(batch.RequestCounts.Completed == 2 && batch.RequestCounts.Failed == 1, batch)
	found := linesOf(client, batch.OutputFileID)
	require(len(found) == 2 && found[0].CustomID == "a" && found[1].CustomID == "c", found)
	require(linesOf(client, batch.ErrorFileID)[0].Response.StatusCode == 400, batch)
	again := must(client.Completions.New(ctx, openai.CompletionNewParams{
		Model:     "toy",
		Prompt:    openai.CompletionNewParamsPromptUnion{OfString: openai.String("Say a")},
		MaxTokens: openai.Int(3),
		Seed:      openai.Int(found[0].Response.Seed),
	}))
	require(again.Choices[0].Text == found[0].Response.Body.Choices[0].Text, again)
	pages := client.Batches.ListAutoPaging(ctx, openai.BatchListParams{Limit: openai.Int(1)})
	require(pages.Next() && pages.Current().ID == batch.ID, pages.Err())
	require(must(client.Files.Delete(ctx, file.ID)).Deleted, file)
}

func linesOf(client openai.Client, fileID string) []line {
	response := must(client.Files.Content(context.Background(), fileID))
	defer response.Body.Close()
	found, scanner := []line{}, bufio.NewScanner(response.Body)
	for scanner.Scan() {
		var one line
		require(json.Unmarshal(scanner.Bytes(), &one) == nil, scanner.Text())
		found = append(found, one)
	}
	return found
}
