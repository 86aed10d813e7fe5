//! Many clients for a long time, of which many hang up: nobody's text is another's, and nothing is left behind.
//!
//! 40 clients for 20 seconds; `LONGRUN_CLIENTS=200 LONGRUN_SECONDS=600` in a release build is the full size.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{Server, told, with};

const CHAT: &str = "/v1/chat/completions";

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Requests of all kinds: greedy and drawn, long and short, with forms and without, with common beginnings.
fn requests() -> Vec<Value> {
    (0..24)
        .map(|i| {
            let system = ["Be brief. ", "You are a poet who knows all the words. "][i % 2].repeat(1 + i % 3 * 8);
            let messages = json!([{"role": "system", "content": system},
                {"role": "user", "content": format!("Question {i} {}", "and more ".repeat(i * 3))}]);
            let (most, goes_on) = ([4, 30, 90][i % 3], i % 4 != 0);
            let body = json!({"messages": messages, "max_tokens": most, "seed": i, "ignore_eos": goes_on});
            let more = match i % 6 {
                0 => json!({"temperature": 0}),
                1 => json!({"temperature": 1.0, "top_p": 0.9}),
                2 => json!({"temperature": 0.7, "repetition_penalty": 1.3}),
                3 => json!({"temperature": 1.0, "top_k": 40, "min_p": 0.01}),
                4 => json!({"temperature": 0, "stop": ["e", "a"]}),
                _ => json!({"temperature": 1.0, "reasoning_budget": 4, "max_tokens": 400, "ignore_eos": false,
                    "response_format": {"type": "choice", "choice": ["left", "right", "neither of them"]}}),
            };
            with(body, more)
        })
        .collect()
}

/// A sequence of numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[derive(Default)]
struct Counts {
    whole: usize,
    hung_up: usize,
    /// Milliseconds to the first event that has text, and to the end.
    first: Vec<u128>,
    end: Vec<u128>,
}

fn percentiles(of: &mut [u128]) -> String {
    of.sort_unstable();
    let at = |p: usize| {
        of.get((of.len() * p / 100).min(of.len().saturating_sub(1))).copied().unwrap_or(0)
    };
    format!("50%: {}, 90%: {}, 99%: {}, most: {} ms", at(50), at(90), at(99), at(100))
}

#[test]
fn many_clients_come_and_go() {
    let (clients, seconds) = (setting("LONGRUN_CLIENTS", 40), setting("LONGRUN_SECONDS", 20));
    let most = (clients + 10).to_string();
    let flags = ["--max-requests", &most, "--max-rows", "16", "--memory", "96MiB"];
    let server = Server::tiny("qwen3_next", &flags);
    let requests = requests();
    let alone: Vec<String> =
        requests.iter().map(|r| told(&server.events(CHAT, r)).content).collect();
    server.idle();
    let (buffers, before) = (server.metric("longrun_live_buffers"), server.rss());
    let counts = Mutex::new(Counts::default());
    let until = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (server, requests, alone, counts) = (&server, &requests, &alone, &counts);
            scope.spawn(move || {
                let mut dice = Dice(client + 1);
                while Instant::now() < until {
                    let i = dice.below(requests.len() as u64) as usize;
                    let hangs_up = (dice.below(5) == 0).then(|| dice.below(12) as usize);
                    let began = Instant::now();
                    let stream = server.stream(CHAT, &requests[i]);
                    assert_eq!(stream.status, 200);
                    if let Some(after) = hangs_up {
                        drop(stream.take(after).collect::<Vec<_>>());
                        counts.lock().unwrap().hung_up += 1;
                        continue;
                    }
                    let (mut first, mut events) = (None, Vec::new());
                    for event in stream {
                        // The first event names the role only.
                        if events.len() == 1 {
                            first = Some(began.elapsed().as_millis());
                        }
                        events.push(event);
                    }
                    let told = told(&events);
                    assert!(told.done && told.finish.is_some());
                    assert_eq!(told.content, alone[i], "request {i}");
                    let mut counts = counts.lock().unwrap();
                    counts.whole += 1;
                    counts.first.push(first.unwrap_or(0));
                    counts.end.push(began.elapsed().as_millis());
                }
            });
        }
    });
    server.idle();
    let mut counts = counts.into_inner().unwrap();
    let after = server.rss();
    println!(
        "{clients} clients, {seconds} s: {} answers, {} hung up",
        counts.whole, counts.hung_up
    );
    println!("first token {}", percentiles(&mut counts.first));
    println!("end         {}", percentiles(&mut counts.end));
    println!(
        "resident    {} KiB before, {} KiB after; {buffers} live buffers",
        before / 1024,
        after / 1024
    );
    assert_eq!(server.metric("longrun_live_buffers"), buffers);
    assert_eq!(server.metric(r#"longrun_engine_total{model="tiny",what="failed"}"#), 0.0);
    assert!(counts.whole > 0 && counts.hung_up > 0);
    assert!(after < before + (48 << 20), "{before} bytes were resident, now {after} are");
    assert_eq!(server.get("/health").status, 200);
    let again: Vec<String> =
        requests.iter().map(|r| told(&server.events(CHAT, r)).content).collect();
    assert_eq!(again, alone);
}
