package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

var client = at("default", "", "any", 0)

func greedy() openai.CompletionNewParams {
	return openai.CompletionNewParams{
		Model:       "toy",
		Prompt:      openai.CompletionNewParamsPromptUnion{OfString: openai.String(prompt)},
		Temperature: openai.Float(0),
		MaxTokens:   openai.Int(12),
	}
}

func create(params openai.CompletionNewParams, options ...option.RequestOption) *openai.Completion {
	return must(client.Completions.New(context.Background(), params, options...))
}

func runAnswers() {
	check("text: every field, none unknown", text)
	check("token ids, lists of texts and of token ids", prompts)
	check("n and best_of", choices)
	check("logprobs, and echo with logprobs", logprobs)
	check("suffix, stop and every other parameter", parameters)
	check("a batch of 256 prompts, in order", batch)
	check("models; OpenAI's names are constants of the SDK", models)
}

func text() {
	completion := create(greedy())
	require(completion.Model == "toy" && completion.Created > 0 && completion.SystemFingerprint != "", completion)
	require(string(completion.Object) == "text_completion" && completion.ID[:5] == "cmpl-", completion)
	usage := completion.Usage
	require(usage.PromptTokens == 17 && usage.CompletionTokens == 12 && usage.TotalTokens == 29, usage)
	choice := completion.Choices[0]
	require(choice.Index == 0 && choice.FinishReason == openai.CompletionChoiceFinishReasonLength, choice)
	require(len(choice.Logprobs.Tokens) == 0 && !choice.JSON.Logprobs.Valid(), choice)
	for name, extra := range map[string]int{
		"completion":                len(completion.JSON.ExtraFields),
		"choice":                    len(choice.JSON.ExtraFields),
		"usage":                     len(usage.JSON.ExtraFields),
		"prompt_tokens_details":     len(usage.PromptTokensDetails.JSON.ExtraFields),
		"completion_tokens_details": len(usage.CompletionTokensDetails.JSON.ExtraFields),
	} {
		require(extra == 0, name)
	}
}

func prompts() {
	params := greedy()
	params.Prompt = openai.CompletionNewParamsPromptUnion{OfString: openai.String("ab")}
	one := create(params).Choices[0].Text
	params.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{97, 98}}
	require(create(params).Choices[0].Text == one, one)
	params.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"ab", "Say"}}
	both := create(params)
	require(len(both.Choices) == 2 && both.Choices[0].Text == one, both)
	params.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfTokenArrays: [][]int64{{97, 98}, {83, 97, 121}}}
	require(create(params).Choices[1].Text == both.Choices[1].Text, both)
}

func choices() {
	params := greedy()
	params.N, params.BestOf, params.Seed, params.Temperature = openai.Int(2), openai.Int(4), openai.Int(7), openai.Float(1)
	first, second := create(params), create(params)
	require(len(first.Choices) == 2 && first.Choices[1].Index == 1, first)
	require(first.Choices[0].Text == second.Choices[0].Text, second)
}

func logprobs() {
	for _, echo := range []bool{false, true} {
		params := greedy()
		params.Logprobs, params.Echo = openai.Int(2), openai.Bool(echo)
		choice := create(params).Choices[0]
		found, start := choice.Logprobs, int64(len(prompt))
		if echo {
			start = 0
			require(choice.Text[:len(prompt)] == prompt, choice.Text)
		}
		require(found.TextOffset[0] == start && len(found.TextOffset) == len(found.Tokens), found)
		if echo { // the first entry is null, as in OpenAI's answers, and the SDK leaves such lists empty
			raw := strings.Join(strings.Fields(found.JSON.TopLogprobs.Raw()), "")
			require(strings.HasPrefix(raw, "[null,{"), raw)
			continue
		}
		require(len(found.TopLogprobs) == len(found.Tokens), found)
		for place, token := range found.Tokens {
			require(found.TopLogprobs[place][token] == found.TokenLogprobs[place], place)
		}
		require(len(found.JSON.ExtraFields) == 0, found)
	}
}

func parameters() {
	params := greedy()
	params.Suffix, params.User = openai.String(" end"), openai.String("u")
	params.Stop = openai.CompletionNewParamsStopUnion{OfStringArray: []string{"\n\n\n"}}
	params.TopP, params.Seed, params.LogitBias = openai.Float(0.9), openai.Int(1), map[string]int64{"50": -100}
	params.PresencePenalty, params.FrequencyPenalty = openai.Float(0.1), openai.Float(0.1)
	completion := create(params, option.WithJSONSet("top_k", 5))
	require(completion.Usage.PromptTokens > 17, completion.Usage)
	whole := create(greedy()).Choices[0].Text
	params = greedy()
	params.Stop = openai.CompletionNewParamsStopUnion{OfString: openai.String(whole[2:3])}
	stopped := create(params).Choices[0]
	require(stopped.FinishReason == openai.CompletionChoiceFinishReasonStop && len(stopped.Text) <= 2, stopped)
}

func batch() {
	texts := []string{}
	for number := 0; number < 256; number++ {
		texts = append(texts, fmt.Sprintf("prompt %d", number))
	}
	params := greedy()
	params.MaxTokens = openai.Int(4)
	params.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: texts}
	all := create(params)
	require(len(all.Choices) == 256, len(all.Choices))
	for place, choice := range all.Choices {
		require(choice.Index == int64(place), place)
	}
	for _, place := range []int{0, 100, 255} {
		params.Prompt = openai.CompletionNewParamsPromptUnion{OfString: openai.String(texts[place])}
		require(create(params).Choices[0].Text == all.Choices[place].Text, place)
	}
}

func models() {
	ids := map[string]bool{}
	for _, model := range must(client.Models.List(context.Background())).Data {
		ids[model.ID] = true
	}
	require(ids["toy"] && ids["davinci-002"], ids)
	require(must(client.Models.Get(context.Background(), "toy")).OwnedBy == "onward", ids)
	for _, name := range []openai.CompletionNewParamsModel{
		openai.CompletionNewParamsModelGPT3_5TurboInstruct,
		openai.CompletionNewParamsModelDavinci002,
		openai.CompletionNewParamsModelBabbage002,
	} {
		params := greedy()
		params.Model = name
		require(create(params).Model == "toy", name)
	}
}
