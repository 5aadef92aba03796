//! The export of spans: a bounded queue, a thread that sends batches, and a count of spans that were not sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use opentelemetry::Context;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor,
};
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// The maximum number of spans that wait.
const QUEUE_LEN: usize = 2048;
/// The time between two exports.
const DELAY: Duration = Duration::from_secs(1);
/// The time for one export.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The numbers of spans.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpanCounts(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    waiting: AtomicUsize,
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl SpanCounts {
    /// Returns the number of spans that the collector has received.
    pub(crate) fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Returns the number of spans that were dropped: the queue was full, or the collector did not take them.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }
}

/// Returns the processor that sends spans to an endpoint.
pub(super) fn processor(endpoint: &str, counts: &SpanCounts) -> Result<Bounded, String> {
    // Fails only if a provider is already installed.
    rustls::crypto::ring::default_provider().install_default().ok();
    let agent = Agent::config_builder()
        .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
        .user_agent(concat!("mlx/", env!("CARGO_PKG_VERSION")))
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .build();
    let exporter = OtlpExporter::builder()
        .with_http()
        .with_http_client(Client(agent.into()))
        .with_endpoint(traces_url(endpoint))
        .build()
        .map_err(|error| error.to_string())?;
    Ok(bounded(exporter, counts))
}

/// Returns the processor in front of an exporter.
fn bounded(exporter: impl SpanExporter + 'static, counts: &SpanCounts) -> Bounded {
    let exporter = Counted { exporter, counts: counts.clone(), failures: AtomicUsize::new(0) };
    let config =
        BatchConfigBuilder::default().with_max_queue_size(QUEUE_LEN).with_scheduled_delay(DELAY).build();
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    Bounded { processor, counts: counts.clone() }
}

/// Returns the address for traces at an endpoint, as the OTLP standard defines it.
fn traces_url(endpoint: &str) -> String {
    let base = endpoint.trim_end_matches('/');
    if base.ends_with("/v1/traces") { base.to_owned() } else { format!("{base}/v1/traces") }
}

/// Drops spans if too many wait.
#[derive(Debug)]
pub(super) struct Bounded {
    processor: BatchSpanProcessor,
    counts: SpanCounts,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.processor.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        let Counts { waiting, dropped, .. } = &*self.counts.0;
        if waiting.fetch_add(1, Ordering::Relaxed) >= QUEUE_LEN {
            waiting.fetch_sub(1, Ordering::Relaxed);
            dropped.fetch_add(1, Ordering::Relaxed);
        } else {
            self.processor.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.processor.set_resource(resource);
    }
}

/// Counts the spans that are sent.
#[derive(Debug)]
struct Counted<E> {
    exporter: E,
    counts: SpanCounts,
    /// The number of exports that failed since the last one that succeeded.
    failures: AtomicUsize,
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        self.counts.0.waiting.fetch_sub(count, Ordering::Relaxed);
        let outcome = self.exporter.export(batch).await;
        match &outcome {
            Ok(()) => {
                self.counts.0.sent.fetch_add(count as u64, Ordering::Relaxed);
                self.failures.store(0, Ordering::Relaxed);
            }
            Err(error) => {
                self.counts.0.dropped.fetch_add(count as u64, Ordering::Relaxed);
                if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(%error, "traces cannot be sent; further failures are only counted");
                }
            }
        }
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Sends requests. It blocks, on the thread of the processor.
#[derive(Debug)]
struct Client(Agent);

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let mut response = self.0.run(Request::from_parts(parts, body.to_vec()))?;
        let bytes = response.body_mut().read_to_vec()?;
        Ok(response.map(|_| bytes.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use opentelemetry::trace::{Tracer, TracerProvider};
    use opentelemetry_sdk::trace::SdkTracerProvider;

    use super::*;

    /// A collector that answers while `open` is not locked.
    #[derive(Debug)]
    struct Slow {
        open: Arc<Mutex<()>>,
    }

    impl SpanExporter for Slow {
        async fn export(&self, _batch: Vec<SpanData>) -> OTelSdkResult {
            drop(self.open.lock().unwrap_or_else(PoisonError::into_inner));
            Ok(())
        }
    }

    #[test]
    fn a_full_queue_drops_spans_and_counts_them() {
        let (open, counts) = (Arc::new(Mutex::new(())), SpanCounts::default());
        let processor = bounded(Slow { open: Arc::clone(&open) }, &counts);
        let provider = SdkTracerProvider::builder().with_span_processor(processor).build();
        let tracer = provider.tracer("test");
        let held = open.lock().expect("no panic");
        let ended = 4 * QUEUE_LEN as u64;
        for _ in 0..ended {
            tracer.start("span");
        }
        let dropped = counts.dropped();
        // The collector holds at most one full queue, besides the queue.
        assert!((ended - 2 * QUEUE_LEN as u64..=ended - QUEUE_LEN as u64).contains(&dropped), "{dropped}");
        drop(held);
        provider.shutdown().expect("the collector answers");
        assert_eq!(
            (counts.sent(), counts.dropped()),
            (ended - dropped, dropped),
            "no span is lost uncounted"
        );
    }

    #[test]
    fn an_endpoint_is_the_base_of_the_address() {
        for endpoint in ["http://a:4318", "http://a:4318/", "http://a:4318/v1/traces"] {
            assert_eq!(traces_url(endpoint), "http://a:4318/v1/traces");
        }
    }
}
