//! The servers, and the results of checks, each printed as a line of JSON that tests/clients/report.py reads.

use async_openai::{config::OpenAIConfig, Client};
use futures::FutureExt;
use serde_json::{json, Value};
use std::{any::Any, env, future::Future, panic::AssertUnwindSafe, time::Duration};

pub const PROMPT: &str = "Say this is a test";

/// Runs a check, which panics when it fails. Returns whether it failed.
pub async fn check(name: &str, body: impl Future<Output = ()>) -> bool {
    let outcome = AssertUnwindSafe(body).catch_unwind().await;
    let detail = outcome.as_ref().err().map(words);
    println!("{{\"check\": {}, \"ok\": {}, \"detail\": {}}}", json!(name), detail.is_none(), json!(detail));
    detail.is_some()
}

fn words(problem: &Box<dyn Any + Send>) -> String {
    match (problem.downcast_ref::<String>(), problem.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => text.to_string(),
        _ => "panic".to_string(),
    }
}

pub fn url(server: &str) -> String {
    let urls: Value = serde_json::from_str(&env::var("ONWARD_CLIENT_URLS").unwrap()).unwrap();
    urls[server].as_str().unwrap().to_string()
}

/// A client of a server. `path` is what comes before /v1.
pub fn client(server: &str, path: &str, key: &str) -> Client<OpenAIConfig> {
    let base = format!("{}{path}/v1", url(server));
    Client::with_config(OpenAIConfig::new().with_api_base(base).with_api_key(key))
}

pub async fn get(url: &str) -> String {
    reqwest::get(url).await.unwrap().text().await.unwrap()
}

/// Waits until the server computes nothing, as it must soon after a client has left.
pub async fn wait_until_idle() {
    for _ in 0..1000 {
        let text = get(&(url("default") + "/metrics")).await;
        let running = text.lines().find_map(|line| line.strip_prefix("onward_engine_running{model=\"toy\"} "));
        if running.unwrap().parse::<f64>().unwrap() == 0.0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the server still works for a client that has left");
}
