//! The numbers at `/metrics`, in Prometheus' text format.
//!
//! Owns every name. What the engine counts is read from it when somebody asks; what only the server sees is counted here.

use std::sync::PoisonError;

use longrun_lm::array::Tag;
use longrun_lm::engine::{Stats, View};
use longrun_lm::prefix::Miss;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder,
};

use super::answering::Timings;
use super::loaded::Loaded;

/// Bounds of latencies, in seconds.
const SECONDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// A count of the engine.
type Count = fn(&Stats) -> u64;

/// All numbers of a server.
pub(crate) struct Metrics {
    registry: Registry,
    buffers: IntGaugeVec,
    bytes: IntGaugeVec,
    gauges: IntGaugeVec,
    running: IntGaugeVec,
    waiting: IntGaugeVec,
    plans: IntGaugeVec,
    tokens: IntCounterVec,
    misses: IntCounterVec,
    hits: IntCounterVec,
    events: IntCounterVec,
    requests: IntCounterVec,
    http: IntCounterVec,
    queued: HistogramVec,
    first_token: HistogramVec,
    each_token: HistogramVec,
    total: HistogramVec,
}

/// Makes and registers the numbers; names and labels are fixed and valid, which a test holds.
struct Maker(Registry);

impl Maker {
    fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        let made = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(made.clone()))?;
        Ok(made)
    }

    fn counter(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        let made = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(made.clone()))?;
        Ok(made)
    }

    fn seconds(&self, name: &str, help: &str) -> prometheus::Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        let made = HistogramVec::new(options, &["model"])?;
        self.0.register(Box::new(made.clone()))?;
        Ok(made)
    }
}

impl Metrics {
    /// # Errors
    /// Two numbers have the same name.
    pub(crate) fn new() -> prometheus::Result<Self> {
        let make = Maker(Registry::new());
        Ok(Self {
            buffers: make.gauge(
                "longrun_live_buffers",
                "Live buffers on the device, by what they are for",
                &["model", "tag"],
            )?,
            bytes: make.gauge(
                "longrun_bytes",
                "Bytes of live buffers, by what they are for",
                &["model", "tag"],
            )?,
            gauges: make.gauge("longrun_cache", "Blocks and snapshots", &["model", "what"])?,
            running: make.gauge("longrun_rows_running", "Rows in service", &["model"])?,
            waiting: make.gauge("longrun_rows_waiting", "Requests without a place", &["model"])?,
            plans: make.gauge("longrun_plans", "Plans; it never changes", &["model"])?,
            tokens: make.counter("longrun_tokens_total", "Tokens", &["model", "kind"])?,
            misses: make.counter(
                "longrun_prefix_miss_total",
                "Prompts of which no beginning was kept",
                &["model", "reason"],
            )?,
            hits: make.counter(
                "longrun_prefix_hit_total",
                "Prompts of which a beginning was kept",
                &["model"],
            )?,
            events: make.counter(
                "longrun_engine_total",
                "What the engine did",
                &["model", "what"],
            )?,
            requests: make.counter(
                "longrun_requests_total",
                "Requests to a model, by how they ended",
                &["model", "outcome"],
            )?,
            http: make.counter(
                "longrun_http_requests_total",
                "Answers over HTTP",
                &["route", "status"],
            )?,
            queued: make.seconds("longrun_queue_seconds", "From a request to its place")?,
            first_token: make.seconds(
                "longrun_time_to_first_token_seconds",
                "From a request to its first token",
            )?,
            each_token: make.seconds(
                "longrun_time_per_output_token_seconds",
                "From token to token, on average over a request",
            )?,
            total: make.seconds("longrun_request_seconds", "From a request to its end")?,
            registry: make.0,
        })
    }

    /// Counts an answer over HTTP.
    pub(crate) fn http(&self, route: &str, status: u16) {
        self.http.with_label_values(&[route, &status.to_string()]).inc();
    }

    /// Counts a request that is over.
    pub(crate) fn request(&self, model: &str, outcome: &str, tokens: usize, timings: Timings) {
        self.requests.with_label_values(&[model, outcome]).inc();
        self.total.with_label_values(&[model]).observe(timings.total);
        if tokens > 0 {
            self.queued.with_label_values(&[model]).observe(timings.queued);
            self.first_token.with_label_values(&[model]).observe(timings.first_token);
        }
        if tokens > 1 {
            let each = (timings.total - timings.first_token) / (tokens - 1) as f64;
            self.each_token.with_label_values(&[model]).observe(each);
        }
    }

    /// Takes over what an engine has counted.
    pub(crate) fn engine(&self, loaded: &Loaded, view: &View) {
        let model = loaded.name.as_str();
        for (tag, count) in Tag::ALL.iter().zip(&view.usage.by_tag) {
            let labels = [model, tag.name()];
            self.buffers.with_label_values(&labels).set(signed(count.buffers));
            self.bytes.with_label_values(&labels).set(signed(count.bytes));
        }
        let (free, blocks) = view.blocks;
        for (what, n) in [("blocks_free", free), ("blocks", blocks), ("snapshots", view.kept)] {
            self.gauges.with_label_values(&[model, what]).set(signed(n));
        }
        self.running.with_label_values(&[model]).set(signed(view.running));
        self.waiting.with_label_values(&[model]).set(signed(view.waiting));
        self.plans.with_label_values(&[model]).set(signed(loaded.plans));
        let mut counted = loaded.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let (old, new) = (std::mem::replace(&mut *counted, view.stats), &view.stats);
        let add = |counter: &IntCounterVec, labels: &[&str], count: Count| {
            let more = count(new).saturating_sub(count(&old));
            counter.with_label_values(labels).inc_by(more);
        };
        let tokens: [(&str, Count); 5] = [
            ("prompt", |s| s.prompt_tokens),
            ("cached", |s| s.cached_tokens),
            ("generated", |s| s.generated_tokens),
            ("drafted", |s| s.drafted),
            ("accepted", |s| s.accepted),
        ];
        tokens.iter().for_each(|(kind, count)| add(&self.tokens, &[model, kind], *count));
        add(&self.hits, &[model], |s| s.hits);
        for (i, reason) in Miss::NAMES.iter().enumerate() {
            let more = new.misses[i].saturating_sub(old.misses[i]);
            self.misses.with_label_values(&[model, reason]).inc_by(more);
        }
        let events: [(&str, Count); 7] = [
            ("steps", |s| s.steps),
            ("started", |s| s.started),
            ("finished", |s| s.finished),
            ("failed", |s| s.failed),
            ("cancelled", |s| s.cancelled),
            ("preempted", |s| s.preempted),
            ("evicted", |s| s.evicted),
        ];
        events.iter().for_each(|(what, count)| add(&self.events, &[model, what], *count));
    }

    /// A model is not loaded any more: what it had is 0.
    pub(crate) fn forget(&self, model: &str) {
        for tag in Tag::ALL {
            self.buffers.with_label_values(&[model, tag.name()]).set(0);
            self.bytes.with_label_values(&[model, tag.name()]).set(0);
        }
        for what in ["blocks_free", "blocks", "snapshots"] {
            self.gauges.with_label_values(&[model, what]).set(0);
        }
        for gauge in [&self.running, &self.waiting, &self.plans] {
            gauge.with_label_values(&[model]).set(0);
        }
    }

    /// Everything, as text.
    pub(crate) fn text(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_told() {
        let metrics = Metrics::new().unwrap();
        metrics.http("/health", 200);
        let timings = Timings { queued: 0.002, first_token: 0.02, total: 1.02 };
        metrics.request("demo", "finished", 11, timings);
        let text = metrics.text();
        for line in [
            r#"longrun_http_requests_total{route="/health",status="200"} 1"#,
            r#"longrun_requests_total{model="demo",outcome="finished"} 1"#,
            r#"longrun_time_to_first_token_seconds_bucket{model="demo",le="0.025"} 1"#,
            r#"longrun_time_per_output_token_seconds_bucket{model="demo",le="0.1"} 1"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
