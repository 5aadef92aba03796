//! Traces by OTLP: a collector receives the spans of requests; one that is absent or slow delays no request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use mlx_tests::server::Server;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;

use super::SERVER;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Starts a collector. Returns its address, and the spans that it receives.
fn collector() -> (String, Receiver<Span>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("it is bound"));
    let (sender, spans) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|count| count > 0) {}
            assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
            let length = head
                .to_lowercase()
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let mut body = vec![0; length.expect("a length")];
            reader.read_exact(&mut body).expect("a body");
            let request = ExportTraceServiceRequest::decode(body.as_slice()).expect("protobuf");
            for scope in request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans) {
                scope.spans.into_iter().for_each(|span| sender.send(span).unwrap_or_default());
            }
            let reply = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            reader.get_mut().write_all(reply.as_bytes()).expect("it is sent");
        }
    });
    (address, spans)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn number(span: &Span, name: &str) -> Option<i64> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == name)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        Any::IntValue(number) => Some(*number),
        _ => None,
    }
}

#[test]
fn a_request_is_a_trace_with_its_phases() {
    let (address, received) = collector();
    let mut server = Server::start(&SERVER, &["--otlp-endpoint", &address]);
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let request =
        json!({"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 5, "ignore_eos": true});
    let headers = [("traceparent", traceparent.as_str()), ("x-request-id", "mine-1")];
    let answer = server.send("POST", "/v1/chat/completions", &headers, &request);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut streamed = request.clone();
    streamed["stream"] = json!(true);
    server.stream("/v1/chat/completions", &streamed);
    // The last spans are sent before the server ends.
    server.terminate();
    server.wait();
    let mut spans = Vec::new();
    while let Ok(span) = received.recv_timeout(Duration::from_secs(1)) {
        assert!(!format!("{span:?}").contains("secret"), "no span has a prompt");
        spans.push(span);
    }
    let of_trace: Vec<&Span> = spans.iter().filter(|span| hex(&span.trace_id) == TRACE).collect();
    let names: Vec<&str> = of_trace.iter().map(|span| span.name.as_str()).collect();
    let find = |name: &str| {
        *of_trace.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name} in {names:?}"))
    };
    let (root, whole) = (find("POST /v1/chat/completions"), find("chat tiny"));
    assert_eq!((of_trace.len(), hex(&root.parent_span_id)), (5, PARENT.to_owned()), "{names:?}");
    assert_eq!(number(root, "http.response.status_code"), Some(200));
    assert_eq!(whole.parent_span_id, root.span_id);
    let usage = &answer.body["usage"];
    assert_eq!(number(whole, "gen_ai.usage.input_tokens"), usage["prompt_tokens"].as_i64());
    assert_eq!(number(whole, "gen_ai.usage.output_tokens"), Some(5));
    let [queue, prefill, decode] = ["queue", "prefill", "decode"].map(find);
    assert!([queue, prefill, decode].iter().all(|phase| phase.parent_span_id == whole.span_id));
    assert_eq!(
        (queue.end_time_unix_nano, prefill.end_time_unix_nano),
        (prefill.start_time_unix_nano, decode.start_time_unix_nano)
    );
    assert_eq!(number(decode, "gen_ai.usage.output_tokens"), Some(5));
    // The stream is another trace, whose first span lasts until its end.
    let other =
        spans.iter().find(|span| span.name == root.name && hex(&span.trace_id) != TRACE).expect("a span");
    let generation = spans.iter().find(|span| span.parent_span_id == other.span_id).expect("a span");
    assert!(other.end_time_unix_nano >= generation.end_time_unix_nano, "{other:?} {generation:?}");
}

#[test]
fn a_collector_that_does_not_answer_delays_no_request() {
    // It accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = format!("http://{}", silent.local_addr().expect("it is bound"));
    // An export waits for its time limit, or fails at once.
    for (endpoint, requests) in [(silent.as_str(), 50), ("http://127.0.0.1:9", 50)] {
        let mut server = Server::start(&SERVER, &["--otlp-endpoint", endpoint]);
        let begin = Instant::now();
        for _ in 0..requests {
            assert_eq!(server.get("/health").status, 200);
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
        let dropped = || {
            let page = server.metrics();
            let line = page.lines().find_map(|line| line.strip_prefix("mlx_spans_dropped_total "));
            line.and_then(|count| count.parse::<u64>().ok()).expect("a count")
        };
        while dropped() == 0 {
            assert!(begin.elapsed() < Duration::from_secs(90), "nothing is counted");
            std::thread::sleep(Duration::from_millis(50));
        }
        let end = Instant::now();
        server.terminate();
        server.wait();
        assert!(end.elapsed() < Duration::from_secs(20), "{:?}", end.elapsed());
    }
}
