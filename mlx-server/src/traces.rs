//! Traces of requests for OpenTelemetry, sent by OTLP. Spans are built from the facts that the server has, so engines in other processes need
//! no part in it. Invariants: no request waits for a collector; spans contain no prompt and no answer.

mod export;

use std::time::{Duration, SystemTime};

use axum::body::{Body, HttpBody};
use axum::http::HeaderMap;
use axum::response::Response;
use http_body_util::BodyExt;
use mlx_core::engine::{FinishReason, Finished, Timings};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{
    Span, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

pub(crate) use export::SpanCounts;

/// The name of the service, unless `OTEL_SERVICE_NAME` has another.
const SERVICE: &str = "mlx";
/// The time to send the last spans when the server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The tracer of a server.
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    counts: SpanCounts,
}

/// The span of a request as the parent of others. By default, there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parent {
    span: SpanContext,
    /// The operation, by its name in the conventions for generative AI.
    operation: &'static str,
}

impl Default for Parent {
    fn default() -> Self {
        Self { span: SpanContext::NONE, operation: "text_completion" }
    }
}

/// The span of a running request.
pub(crate) struct RequestSpan {
    span: opentelemetry_sdk::trace::Span,
    operation: &'static str,
}

impl Traces {
    /// Starts to send spans to this endpoint.
    pub(crate) fn open(endpoint: &str) -> Result<Self, String> {
        let counts = SpanCounts::default();
        let processor = export::processor(endpoint, &counts)?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(SERVICE);
        }
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = resource.with_attributes([version]).build();
        let provider = SdkTracerProvider::builder().with_resource(resource).with_span_processor(processor);
        let provider = provider.build();
        Ok(Self { tracer: provider.tracer("mlx-server"), provider, counts })
    }

    /// Returns the numbers of spans.
    pub(crate) fn counts(&self) -> &SpanCounts {
        &self.counts
    }

    /// Begins the span of a request. The client's `traceparent` is its parent.
    pub(crate) fn begin(
        &self,
        method: &'static str,
        route: &str,
        headers: &HeaderMap,
        id: &str,
    ) -> RequestSpan {
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let operation = operation(route);
        let attributes = [
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.route", route.to_owned()),
            KeyValue::new("mlx.request.id", id.to_owned()),
        ];
        let span = SpanBuilder::from_name(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes(attributes);
        RequestSpan { span: self.tracer.build_with_context(span, &parent), operation }
    }

    /// Records an ended generation: its wait, its prefill and its decoding.
    pub(crate) fn record(&self, parent: &Parent, model: &str, id: &str, finished: &Finished) {
        let Timings { queue, prefill, decode } = finished.timings;
        let phases = [("queue", queue), ("prefill", prefill), ("decode", decode)]
            .map(|(name, seconds)| (name, Duration::try_from_secs_f64(seconds).unwrap_or_default()));
        let end = SystemTime::now();
        let mut time = end.checked_sub(phases.iter().map(|(_, length)| *length).sum()).unwrap_or(end);
        let context = Context::new().with_remote_span_context(parent.span.clone());
        let builder = SpanBuilder::from_name(format!("{} {model}", parent.operation))
            .with_kind(SpanKind::Internal)
            .with_start_time(time)
            .with_attributes(attributes(parent.operation, model, id, finished));
        let mut whole = self.tracer.build_with_context(builder, &context);
        if let FinishReason::Error(_) = finished.reason {
            // The message may quote a request.
            whole.set_attribute(KeyValue::new("error.type", "generation_failed"));
            whole.set_status(Status::error("the generation failed"));
        }
        let context = Context::new().with_remote_span_context(whole.span_context().clone());
        for (name, length) in phases {
            let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Internal).with_start_time(time);
            let count = |name: &'static str, value: usize| KeyValue::new(name, value as i64);
            let tokens = match name {
                "prefill" => Some(count("gen_ai.usage.input_tokens", finished.usage.prompt_tokens)),
                "decode" => Some(count("gen_ai.usage.output_tokens", finished.usage.completion_tokens)),
                _ => None,
            };
            let mut span = self.tracer.build_with_context(builder.with_attributes(tokens), &context);
            time += length;
            span.end_with_timestamp(time);
        }
        whole.end_with_timestamp(end);
    }

    /// Sends the remaining spans, for a limited time.
    pub(crate) fn close(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(CLOSE_TIMEOUT) {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

/// Returns the name of a route's operation in the conventions for generative AI.
fn operation(route: &str) -> &'static str {
    match route {
        "/v1/chat/completions" | "/v1/messages" | "/v1/responses" | "/api/chat" => "chat",
        "/v1/embeddings" | "/api/embed" | "/api/embeddings" => "embeddings",
        _ => "text_completion",
    }
}

/// Returns the attributes of a generation, by their names in the conventions for generative AI.
fn attributes(operation: &'static str, model: &str, id: &str, finished: &Finished) -> Vec<KeyValue> {
    let reason = Value::Array(Array::String(vec![StringValue::from(finished.reason.as_str())]));
    let count = |name: &'static str, value: usize| KeyValue::new(name, value as i64);
    vec![
        KeyValue::new("gen_ai.operation.name", operation),
        KeyValue::new("gen_ai.provider.name", SERVICE),
        KeyValue::new("gen_ai.request.model", model.to_owned()),
        KeyValue::new("gen_ai.response.model", model.to_owned()),
        KeyValue::new("gen_ai.response.finish_reasons", reason),
        count("gen_ai.usage.input_tokens", finished.usage.prompt_tokens),
        count("gen_ai.usage.cache_read.input_tokens", finished.usage.cached_tokens),
        count("gen_ai.usage.output_tokens", finished.usage.completion_tokens),
        KeyValue::new("mlx.request.id", id.to_owned()),
    ]
}

impl RequestSpan {
    /// Returns the span as the parent of others.
    pub(crate) fn as_parent(&self) -> Parent {
        Parent { span: self.span.span_context().clone(), operation: self.operation }
    }

    /// Ends the span with the body of the response.
    pub(crate) fn end_with(mut self, response: Response) -> Response {
        let status = response.status();
        self.span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_server_error() {
            self.span.set_attribute(KeyValue::new("error.type", status.as_str().to_owned()));
            self.span.set_status(Status::error("the request failed"));
        }
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        // The span ends when it is dropped, with the body of the stream.
        response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _held = &self;
                frame
            }))
        })
    }
}
