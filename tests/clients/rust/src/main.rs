//! async-openai against a real server: whole completions, streams, failures.

mod check;

use async_openai::error::OpenAIError;
use async_openai::types::chat::{ChatCompletionStreamOptions, CompletionFinishReason, Prompt, StopConfiguration};
use async_openai::types::completions::{CreateCompletionRequest, CreateCompletionResponse};
use check::{check, client, get, url, wait_until_idle, PROMPT};
use futures::StreamExt;
use serde_json::{json, Value};
use std::collections::HashMap;

fn greedy() -> CreateCompletionRequest {
    CreateCompletionRequest {
        model: "toy".into(),
        prompt: Prompt::String(PROMPT.into()),
        temperature: Some(0.0),
        max_tokens: Some(12),
        ..Default::default()
    }
}

fn with_prompt(prompt: Prompt) -> CreateCompletionRequest {
    CreateCompletionRequest { prompt, ..greedy() }
}

async fn create(request: CreateCompletionRequest) -> CreateCompletionResponse {
    client("default", "", "any").completions().create(request).await.unwrap()
}

fn texts(response: &CreateCompletionResponse) -> Vec<String> {
    response.choices.iter().map(|choice| choice.text.clone()).collect()
}

async fn text() {
    let response = create(greedy()).await;
    let usage = response.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (17, 12, 29));
    assert_eq!((response.model.as_str(), response.object.as_str()), ("toy", "text_completion"));
    assert!(response.id.starts_with("cmpl-") && response.system_fingerprint.is_some());
    assert_eq!(response.choices[0].finish_reason, Some(CompletionFinishReason::Length));
}

async fn prompts() {
    let one = texts(&create(with_prompt(Prompt::String("ab".into()))).await);
    assert_eq!(texts(&create(with_prompt(Prompt::IntegerArray(vec![97, 98]))).await), one);
    let both = texts(&create(with_prompt(Prompt::StringArray(vec!["ab".into(), "Say".into()]))).await);
    let ids = Prompt::ArrayOfIntegerArray(vec![vec![97, 98], vec![83, 97, 121]]);
    assert_eq!(texts(&create(with_prompt(ids)).await), both);
    assert_eq!(both[0], one[0]);
}

async fn choices() {
    let request = CreateCompletionRequest {
        n: Some(2), best_of: Some(4), seed: Some(7), temperature: Some(1.0), ..greedy()
    };
    let first = create(request.clone()).await;
    assert_eq!(first.choices.iter().map(|choice| choice.index).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(texts(&create(request).await), texts(&first));
}

async fn logprobs() {
    for echo in [false, true] {
        let request = CreateCompletionRequest { logprobs: Some(2), echo: Some(echo), ..greedy() };
        let choice = create(request).await.choices.remove(0);
        let found = choice.logprobs.unwrap();
        assert_eq!(choice.text.starts_with(PROMPT), echo);
        assert_eq!(found.text_offset[0], if echo { 0 } else { PROMPT.len() as u32 });
        assert_eq!(found.token_logprobs[0].is_none(), echo);
        for place in usize::from(echo)..found.tokens.len() {
            let own = found.top_logprobs[place][&found.tokens[place]].as_f64().unwrap() as f32;
            assert_eq!(Some(own), found.token_logprobs[place]);
        }
    }
}

async fn parameters() {
    let request = CreateCompletionRequest {
        suffix: Some(" end".into()),
        stop: Some(StopConfiguration::StringArray(vec!["\n\n\n".into()])),
        user: Some("u".into()),
        top_p: Some(0.9),
        seed: Some(1),
        presence_penalty: Some(0.1),
        frequency_penalty: Some(0.1),
        logit_bias: Some(HashMap::from([("50".to_string(), json!(-100))])),
        ..greedy()
    };
    assert!(create(request).await.usage.unwrap().prompt_tokens > 17);
    let whole = texts(&create(greedy()).await).remove(0);
    let third: String = whole.chars().skip(2).take(1).collect();
    let stopped = create(CreateCompletionRequest { stop: Some(StopConfiguration::String(third)), ..greedy() }).await;
    assert_eq!(stopped.choices[0].finish_reason, Some(CompletionFinishReason::Stop));
    assert!(whole.starts_with(&stopped.choices[0].text));
}

async fn batch() {
    let prompts: Vec<String> = (0..256).map(|number| format!("prompt {number}")).collect();
    let all = create(with_prompt(Prompt::StringArray(prompts.clone()))).await;
    assert_eq!(all.choices.iter().map(|choice| choice.index).collect::<Vec<_>>(), (0..256).collect::<Vec<_>>());
    for place in [0, 100, 255] {
        let alone = create(with_prompt(Prompt::String(prompts[place].clone()))).await;
        assert_eq!(texts(&alone)[0], all.choices[place].text);
    }
}

async fn models() {
    let found = client("default", "", "any").models().list().await.unwrap();
    let ids: Vec<String> = found.data.into_iter().map(|model| model.id).collect();
    assert!(ids.contains(&"toy".to_string()) && ids.contains(&"davinci-002".to_string()), "{ids:?}");
    for name in ["gpt-3.5-turbo-instruct", "davinci-002", "babbage-002"] {
        assert_eq!(create(CreateCompletionRequest { model: name.into(), ..greedy() }).await.model, "toy");
    }
}

async fn whole_stream() {
    let whole = create(greedy()).await;
    let options = ChatCompletionStreamOptions { include_usage: Some(true), include_obfuscation: None };
    let request = CreateCompletionRequest { stream: Some(true), stream_options: Some(options), ..greedy() };
    let here = client("default", "", "any");
    let mut stream = here.completions().create_stream(request).await.unwrap();
    let (mut text, mut usage) = (String::new(), None);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.unwrap();
        chunk.choices.iter().for_each(|choice| text.push_str(&choice.text));
        usage = chunk.usage.or(usage);
    }
    assert_eq!(text, whole.choices[0].text);
    assert_eq!(usage.unwrap().completion_tokens, whole.usage.unwrap().completion_tokens);
}

async fn cancel() {
    let endless = json!({"model": "toy", "prompt": PROMPT, "max_tokens": 1900, "n": 16, "ignore_eos": true, "stream": true});
    let here = client("default", "", "any");
    let mut stream = here.completions().create_stream_byot::<Value, Value>(endless).await.unwrap();
    for _ in 0..3 {
        stream.next().await.unwrap().unwrap();
    }
    drop(stream);
    wait_until_idle().await;
}

async fn broken() {
    for fault in ["error", "cut"] {
        let request = CreateCompletionRequest { stream: Some(true), max_tokens: Some(999), ..greedy() };
        let faulty = client("faults", &format!("/{fault}/x"), "any");
        let mut stream = faulty.completions().create_stream(request).await.unwrap();
        let (mut chunks, mut problem) = (0, None);
        while let Some(chunk) = stream.next().await {
            chunks += usize::from(chunk.is_ok());
            problem = problem.or(chunk.err());
        }
        assert!(chunks > 0 && problem.is_some(), "{chunks} chunks, no error with the fault {fault}");
    }
}

async fn refused(server: &str, path: &str, key: &str, request: CreateCompletionRequest) -> (u16, Option<String>) {
    match client(server, path, key).completions().create(request).await.unwrap_err() {
        OpenAIError::ApiError(error) => (error.status_code.as_u16(), error.api_error.code),
        other => panic!("not an ApiError: {other:?}"),
    }
}

async fn errors() {
    let hot = CreateCompletionRequest { temperature: Some(9.0), ..greedy() };
    assert_eq!(refused("default", "", "any", hot).await.0, 400);
    let missing = CreateCompletionRequest { model: "nope".into(), ..greedy() };
    assert_eq!(refused("default", "", "any", missing).await, (404, Some("model_not_found".into())));
    assert_eq!(refused("keyed", "", "wrong", greedy()).await, (401, Some("invalid_api_key".into())));
    let key = std::env::var("ONWARD_CLIENT_KEY").unwrap();
    client("keyed", "", &key).completions().create(greedy()).await.unwrap();
    for status in [403, 413, 422] {
        let found = refused("faults", &format!("/status/{status}"), "any", greedy()).await;
        assert_eq!(found, (status, Some("on_purpose".into())));
    }
}

/// async-openai does not count its retries in a header.
async fn retries() {
    for (fault, requests) in [("retry", 2), ("busy", 1)] {
        let name = format!("rust{}-{fault}", std::process::id());
        client("faults", &format!("/{fault}/{name}"), "any").completions().create(greedy()).await.unwrap();
        let seen: Vec<String> = serde_json::from_str(&get(&format!("{}/seen/{name}", url("faults"))).await).unwrap();
        assert_eq!(seen.len(), requests + 1);
    }
}

#[tokio::main]
async fn main() {
    let failed = [
        check("text: every field", text()).await,
        check("token ids, lists of texts and of token ids", prompts()).await,
        check("n and best_of", choices()).await,
        check("logprobs, and echo with logprobs", logprobs()).await,
        check("suffix, stop and every other parameter", parameters()).await,
        check("a batch of 256 prompts, in order", batch()).await,
        check("models and OpenAI's names", models()).await,
        check("a stream with usage is the whole answer", whole_stream()).await,
        check("a dropped stream ends its work on the server", cancel()).await,
        check("an error in the middle of a stream, and a lost connection, are errors", broken()).await,
        check("errors with status and code: 400, 401, 403, 404, 413, 422", errors()).await,
        check("retries after 429 and 503", retries()).await,
    ];
    std::process::exit(i32::from(failed.contains(&true)));
}
