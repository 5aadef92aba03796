//! Metrics in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mlx_core::engine::{EngineStats, Restarts};

/// Upper bounds of the histogram buckets, in seconds.
const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// The metrics of the server. Engines keep their own.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Responses by route and status.
    responses: Counters<(String, u16)>,
    /// Generations by finish reason.
    generations: Counters<&'static str>,
    /// Time from the start of a generation, including queueing, to its first token.
    pub(crate) first_token: Histogram,
    /// Time in the engine's queue before prefill.
    pub(crate) queue: Histogram,
    /// Time between two tokens.
    pub(crate) next_token: Histogram,
    /// Time from a request to its response headers.
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

/// A histogram of times.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// One bucket per bound, and one for longer times.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

impl Histogram {
    /// Records a time.
    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.iter().position(|border| seconds <= *border).unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut Page, name: &str, help: &str) {
        out.head(name, "histogram", help);
        let mut count = 0;
        for (bucket, border) in
            self.buckets.iter().zip(BOUNDS.map(|it| it.to_string()).iter().map(Some).chain([None]))
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

/// The metrics of a model.
#[derive(Debug)]
pub(crate) struct ModelStats {
    pub(crate) name: String,
    /// The statistics of the engine. `None` while the model is not loaded.
    pub(crate) stats: Option<EngineStats>,
}

impl Metrics {
    /// Counts a response when its headers are sent.
    pub(crate) fn record_response(&self, route: &str, status: u16, time: Duration) {
        self.responses.add((route.to_owned(), status));
        self.response.observe(time);
    }

    /// Counts a finished generation.
    pub(crate) fn record_generation(&self, reason: &'static str) {
        self.generations.add(reason);
    }

    /// Returns all metrics in Prometheus' text format. `spans` are the numbers of sent and dropped spans, if traces are sent.
    pub(crate) fn page(&self, models: &[ModelStats], spans: Option<(u64, u64)>) -> String {
        let mut out = Page(String::new());
        out.head("mlx_http_responses_total", "counter", "Responses by route and status.");
        for ((route, status), count) in self.responses.read() {
            let labels = [("route", route.as_str()), ("status", &status.to_string())];
            out.line("mlx_http_responses_total", &labels, count);
        }
        out.head("mlx_generations_total", "counter", "Generations by finish reason.");
        for (reason, count) in self.generations.read() {
            out.line("mlx_generations_total", &[("reason", reason)], count);
        }
        self.response.write(
            &mut out,
            "mlx_http_response_seconds",
            "Time from a request to its response headers.",
        );
        self.first_token.write(
            &mut out,
            "mlx_time_to_first_token_seconds",
            "Time from the start of a generation, including queueing, to its first token.",
        );
        self.queue.write(
            &mut out,
            "mlx_queue_seconds",
            "Time in the queue before prefill, of finished generations.",
        );
        self.next_token.write(&mut out, "mlx_inter_token_seconds", "Time between two tokens.");
        if let Some(bytes) = mlx_core::machine::footprint() {
            let help = "Memory of the server's process in bytes, including GPU memory on a Mac; without processes of engines.";
            out.head("process_resident_memory_bytes", "gauge", help);
            out.line("process_resident_memory_bytes", &[], bytes);
        }
        if let Some((sent, dropped)) = spans {
            for (name, help, count) in [
                ("mlx_spans_sent_total", "Spans that the collector of traces received.", sent),
                ("mlx_spans_dropped_total", "Spans that the collector of traces did not receive.", dropped),
            ] {
                out.head(name, "counter", help);
                out.line(name, &[], count);
            }
        }
        engines(&mut out, models);
        out.0
    }
}

type EngineMetric = (&'static str, &'static str, &'static str, fn(&EngineStats) -> u64);

const ENGINE_METRICS: [EngineMetric; 22] = [
    ("mlx_requests_waiting", "gauge", "Requests in the queue.", |it| it.waiting as u64),
    ("mlx_requests_running", "gauge", "Requests that are running.", |it| it.running as u64),
    ("mlx_requests_finished_total", "counter", "Finished requests.", |it| it.finished),
    ("mlx_prompt_tokens_total", "counter", "Computed prompt tokens.", |it| it.prompt_tokens),
    ("mlx_cached_tokens_total", "counter", "Prompt tokens reused from a cache.", |it| it.cached_tokens),
    ("mlx_completion_tokens_total", "counter", "Generated tokens.", |it| it.completion_tokens),
    ("mlx_drafted_tokens_total", "counter", "Draft tokens that were verified.", |it| it.drafted_tokens),
    ("mlx_accepted_tokens_total", "counter", "Draft tokens that were accepted.", |it| it.accepted_tokens),
    (
        "mlx_steps_ahead_total",
        "counter",
        "Decode steps started speculatively, before sampling of the previous one.",
        |it| it.steps_ahead,
    ),
    ("mlx_steps_dropped_total", "counter", "Steps of mlx_steps_ahead_total that were dropped.", |it| {
        it.steps_dropped
    }),
    ("mlx_preemptions_total", "counter", "Preemptions of requests.", |it| it.preemptions),
    ("mlx_budget_bytes", "gauge", "Memory budget of the engine in bytes.", |it| it.budget_bytes),
    ("mlx_reserved_bytes", "gauge", "Bytes reserved for weights and requests.", |it| it.reserved_bytes),
    ("mlx_used_bytes", "gauge", "Bytes used by weights and requests.", |it| it.used_bytes),
    ("mlx_prefix_cache_bytes", "gauge", "Bytes in the prefix cache.", |it| it.prefix_bytes),
    ("mlx_prefix_cache_entries", "gauge", "Entries in the prefix cache.", |it| it.prefixes as u64),
    ("mlx_prefix_cache_hits_total", "counter", "Requests that reused a prefix from memory.", |it| {
        it.prefix_hits
    }),
    ("mlx_prefix_cache_evictions_total", "counter", "Prefixes evicted from memory.", |it| {
        it.prefix_evictions
    }),
    ("mlx_prompt_cache_hits_total", "counter", "Requests that reused a prefix from disk.", |it| {
        it.prefix_restores
    }),
    ("mlx_prompt_cache_damaged_total", "counter", "Damaged files removed from the disk cache.", |it| {
        it.damaged_blocks
    }),
    (
        "mlx_requests_resumed_total",
        "counter",
        "Sequences that continued after the death of an engine's process.",
        |it| it.resumed,
    ),
    (
        "mlx_engine_process_bytes",
        "gauge",
        "Memory of an engine's process in bytes, including GPU memory on a Mac; 0 if the server's process runs it.",
        |it| it.process_bytes,
    ),
];

/// Writes the metrics of the engines. Their counters restart when a model is reloaded; Prometheus handles such resets.
fn engines(out: &mut Page, models: &[ModelStats]) {
    out.head("mlx_model_loaded", "gauge", "1 if a model is in memory, else 0.");
    for model in models {
        out.line("mlx_model_loaded", &[("model", &model.name)], u64::from(model.stats.is_some()));
    }
    for (name, kind, help, figure) in ENGINE_METRICS {
        out.head(name, kind, help);
        for (model, stats) in models.iter().filter_map(|model| Some((model, model.stats.as_ref()?))) {
            out.line(name, &[("model", &model.name)], figure(stats));
        }
    }
    let (name, help) =
        ("mlx_engine_restarts_total", "Deaths of an engine's process, after which it was started again.");
    out.head(name, "counter", help);
    for (model, stats) in models.iter().filter_map(|model| Some((model, model.stats.as_ref()?))) {
        let Restarts { exited, killed, stalled, garbled, lost_machine } = stats.restarts;
        let reasons = [
            ("exit", exited),
            ("signal", killed),
            ("stall", stalled),
            ("garbage", garbled),
            ("worker", lost_machine),
        ];
        for (reason, count) in reasons {
            out.line(name, &[("model", &model.name), ("reason", reason)], count);
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
    fn metrics_are_valid_prometheus_text() {
        let metrics = Metrics::default();
        metrics.record_response("/v1/models", 200, Duration::from_millis(3));
        metrics.record_generation("stop");
        metrics.first_token.observe(Duration::from_secs(100));
        let stats = EngineStats { running: 2, ..EngineStats::default() };
        let models = [ModelStats { name: "a\"b".into(), stats: Some(stats) }];
        let page = metrics.page(&models, None);
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
