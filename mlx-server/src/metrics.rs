//! What the server counts, and how monitoring reads it: Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mlx_core::engine::EngineStats;

/// Upper borders of the buckets for times, in seconds.
const BORDERS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// Everything that is counted outside of the engines.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Responses by route and status.
    responses: Counters<(String, u16)>,
    /// Generations by how they ended.
    generations: Counters<&'static str>,
    /// From the start of a generation, its waiting included, to its first token.
    pub(crate) first_token: Histogram,
    /// From the engine's queue to the start of the prompt.
    pub(crate) queue: Histogram,
    /// From a token to the next.
    pub(crate) next_token: Histogram,
    /// From the request to the head of its response.
    pub(crate) response: Histogram,
}

/// Counters by label.
#[derive(Debug)]
struct Counters<K>(Mutex<BTreeMap<K, u64>>);

impl<K> Default for Counters<K> {
    fn default() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<K: Ord + Clone> Counters<K> {
    fn add(&self, key: K) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
    }

    fn read(&self) -> Vec<(K, u64)> {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().map(|(key, count)| (key.clone(), *count)).collect()
    }
}

/// How often times fell into each bucket.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// One for each border, and one for what lies beyond the last.
    buckets: [AtomicU64; BORDERS.len() + 1],
    microseconds: AtomicU64,
}

impl Histogram {
    /// Counts a time.
    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BORDERS.iter().position(|border| seconds <= *border).unwrap_or(BORDERS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut Page, name: &str, help: &str) {
        out.head(name, "histogram", help);
        let mut count = 0;
        for (bucket, border) in
            self.buckets.iter().zip(BORDERS.map(|it| it.to_string()).iter().map(Some).chain([None]))
        {
            count += bucket.load(Ordering::Relaxed);
            let border = border.map_or("+Inf", String::as_str);
            out.line(&format!("{name}_bucket"), &[("le", border)], count);
        }
        let sum = self.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        out.line(&format!("{name}_sum"), &[], sum);
        out.line(&format!("{name}_count"), &[], count);
    }
}

/// A model as monitoring sees it.
#[derive(Debug)]
pub(crate) struct ModelFigures {
    /// Its name.
    pub(crate) name: String,
    /// What its engine says; none while it is not loaded.
    pub(crate) stats: Option<EngineStats>,
}

impl Metrics {
    /// A response has begun.
    pub(crate) fn responded(&self, route: &str, status: u16, time: Duration) {
        self.responses.add((route.to_owned(), status));
        self.response.observe(time);
    }

    /// A generation has ended.
    pub(crate) fn generated(&self, reason: &'static str) {
        self.generations.add(reason);
    }

    /// All figures, as Prometheus reads them.
    pub(crate) fn page(&self, models: &[ModelFigures]) -> String {
        let mut out = Page(String::new());
        out.head("mlx_http_responses_total", "counter", "Responses by route and status.");
        for ((route, status), count) in self.responses.read() {
            let labels = [("route", route.as_str()), ("status", &status.to_string())];
            out.line("mlx_http_responses_total", &labels, count);
        }
        out.head("mlx_generations_total", "counter", "Generations by how they ended.");
        for (reason, count) in self.generations.read() {
            out.line("mlx_generations_total", &[("reason", reason)], count);
        }
        self.response.write(
            &mut out,
            "mlx_http_response_seconds",
            "From a request to the head of its response.",
        );
        self.first_token.write(
            &mut out,
            "mlx_time_to_first_token_seconds",
            "From the start of a generation, its waiting included, to its first token.",
        );
        self.queue.write(
            &mut out,
            "mlx_queue_seconds",
            "From the queue to the start of the prompt, of generations that have ended.",
        );
        self.next_token.write(&mut out, "mlx_inter_token_seconds", "From a token to the next.");
        engines(&mut out, models);
        out.0
    }
}

type Figure = (&'static str, &'static str, &'static str, fn(&EngineStats) -> u64);

const FIGURES: [Figure; 16] = [
    ("mlx_requests_waiting", "gauge", "Requests that wait for their turn.", |it| it.waiting as u64),
    ("mlx_requests_running", "gauge", "Requests that are being worked on.", |it| it.running as u64),
    ("mlx_requests_finished_total", "counter", "Requests that have ended.", |it| it.finished),
    ("mlx_prompt_tokens_total", "counter", "Prompt tokens that were computed.", |it| it.prompt_tokens),
    ("mlx_cached_tokens_total", "counter", "Prompt tokens that were taken from a cache.", |it| {
        it.cached_tokens
    }),
    ("mlx_completion_tokens_total", "counter", "Tokens that were drawn.", |it| it.completion_tokens),
    ("mlx_preemptions_total", "counter", "Times a request was put back to make room.", |it| it.preemptions),
    ("mlx_budget_bytes", "gauge", "Bytes that an engine may take.", |it| it.budget_bytes),
    ("mlx_reserved_bytes", "gauge", "Bytes that are promised to requests and weights.", |it| {
        it.reserved_bytes
    }),
    ("mlx_used_bytes", "gauge", "Bytes that requests and weights hold.", |it| it.used_bytes),
    ("mlx_prefix_cache_bytes", "gauge", "Bytes of texts that are kept for later requests.", |it| {
        it.prefix_bytes
    }),
    ("mlx_prefix_cache_entries", "gauge", "Texts that are kept for later requests.", |it| it.prefixes as u64),
    ("mlx_prefix_cache_hits_total", "counter", "Requests that began with a kept text.", |it| it.prefix_hits),
    ("mlx_prefix_cache_evictions_total", "counter", "Kept texts that made room.", |it| it.prefix_evictions),
    ("mlx_prompt_cache_hits_total", "counter", "Requests that began with a text from disk.", |it| {
        it.prefix_restores
    }),
    ("mlx_prompt_cache_damaged_total", "counter", "Saved files that were damaged, and removed.", |it| {
        it.damaged_blocks
    }),
];

/// The engines' own figures begin anew when a model is loaded again; Prometheus knows that of counters.
fn engines(out: &mut Page, models: &[ModelFigures]) {
    out.head("mlx_model_loaded", "gauge", "Whether a model is in memory.");
    for model in models {
        out.line("mlx_model_loaded", &[("model", &model.name)], u64::from(model.stats.is_some()));
    }
    for (name, kind, help, figure) in FIGURES {
        out.head(name, kind, help);
        for (model, stats) in models.iter().filter_map(|model| Some((model, model.stats.as_ref()?))) {
            out.line(name, &[("model", &model.name)], figure(stats));
        }
    }
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.push(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<_> = labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escape(text))).collect();
        if labels.is_empty() {
            self.push(format_args!("{name} {value}\n"));
        } else {
            self.push(format_args!("{name}{{{}}} {value}\n", labels.join(",")));
        }
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("writing to a string cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_prometheus_form() {
        let metrics = Metrics::default();
        metrics.responded("/v1/models", 200, Duration::from_millis(3));
        metrics.generated("stop");
        metrics.first_token.observe(Duration::from_secs(100));
        let stats = EngineStats { running: 2, ..EngineStats::default() };
        let models = [ModelFigures { name: "a\"b".into(), stats: Some(stats) }];
        let page = metrics.page(&models);
        for line in [
            "mlx_http_responses_total{route=\"/v1/models\",status=\"200\"} 1",
            "mlx_generations_total{reason=\"stop\"} 1",
            "mlx_http_response_seconds_bucket{le=\"0.0025\"} 0",
            "mlx_http_response_seconds_bucket{le=\"0.005\"} 1",
            "mlx_time_to_first_token_seconds_bucket{le=\"60\"} 0",
            "mlx_time_to_first_token_seconds_bucket{le=\"+Inf\"} 1",
            "mlx_time_to_first_token_seconds_sum 100",
            "mlx_requests_running{model=\"a\\\"b\"} 2",
            "mlx_model_loaded{model=\"a\\\"b\"} 1",
        ] {
            assert!(page.lines().any(|it| it == line), "{line}\n{page}");
        }
    }
}
