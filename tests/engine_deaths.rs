//! Deaths of engines and servers beyond their streams: signals for all processes, the journal, `/ready`, `/metrics` and the log.

use std::io::{BufRead, BufReader};

use mlx_tests::deadly::{Deadly, exists, wait_until};
use serde_json::{Value, json};

const SERVER: &str = env!("CARGO_BIN_EXE_mlx-server");

fn long(tokens: usize) -> Value {
    json!({"model": "tiny", "prompt": "The waves", "max_tokens": tokens, "ignore_eos": true, "stream": true})
}

/// Waits until a request runs in the child.
fn wait_for_work(deadly: &Deadly) {
    deadly.wait_until("it runs", || deadly.server.figure("mlx_requests_running") == 1);
}

/// A terminal signals a group of processes, a service manager all of a service.
#[test]
fn signals_for_server_and_engine_let_requests_finish() {
    let mut deadly = Deadly::start(SERVER, &[]);
    let child = deadly.child();
    let chunks = std::thread::scope(|scope| {
        let stream = scope.spawn(|| deadly.server.stream("/v1/completions", &long(400)));
        wait_for_work(&deadly);
        for name in ["INT", "TERM", "HUP"] {
            deadly.signal(name);
        }
        deadly.server.signal("INT");
        stream.join().expect("a stream")
    });
    let ends = chunks.iter().filter_map(|chunk| chunk["choices"][0]["finish_reason"].as_str());
    assert_eq!(ends.collect::<Vec<_>>(), ["length"], "{}", deadly.server.log());
    assert!(deadly.server.wait().success());
    wait_until(|| !exists(child), || "the child outlives its server".to_owned());
}

#[test]
fn ready_metrics_and_the_log_report_each_death() {
    let deadly = Deadly::start(SERVER, &[]);
    deadly.signal("KILL");
    // Without requests, the next child starts after a second.
    deadly.wait_until("/ready reports the death", || {
        let reply = deadly.server.get("/ready");
        let error = &reply.body["error"];
        let message = "the engine's process was ended by signal 9; it is being started again";
        (reply.status, &error["code"], &error["message"])
            == (503, &json!("engine_restarting"), &json!(message))
    });
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| deadly.server.stream("/v1/completions", &long(3000)));
        for (deaths, fault) in (2..).zip(["exit", "garbage", "wedge"]) {
            wait_for_work(&deadly);
            deadly.fault(fault);
            deadly.wait_until(fault, || deadly.restarts() == deaths);
        }
        let chunks = stream.join().expect("a stream");
        assert!(chunks.iter().all(|chunk| chunk["error"].is_null()), "{}", deadly.server.log());
    });
    assert_eq!(deadly.server.get("/ready").status, 200);
    let page = deadly.server.metrics();
    for reason in ["exit", "signal", "stall", "garbage"] {
        let line = format!("mlx_engine_restarts_total{{model=\"tiny\",reason=\"{reason}\"}} 1");
        assert!(page.lines().any(|it| it == line), "{line}: {page}");
    }
    assert_eq!(deadly.server.figure("mlx_requests_resumed_total"), 3);
    assert!(deadly.server.figure("mlx_engine_process_bytes") > 1 << 20);
    let log = deadly.server.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let deaths: Vec<_> = lines
        .filter(|line| line["message"].as_str().is_some_and(|it| it.starts_with("an engine's process died")))
        .map(|line| (line["cause"].as_str().unwrap_or_default().to_owned(), line["requests"].clone()))
        .collect();
    let causes = ["ended by signal 9", "exited with status 3", "killed, since", "made no progress"];
    assert_eq!(deaths.len(), causes.len(), "{log}");
    for ((cause, requests), (expected, running)) in deaths.iter().zip(causes.into_iter().zip([0, 1, 1, 1])) {
        assert!(cause.contains(expected) && *requests == json!(running), "{cause}, {requests}: {expected}");
    }
}

/// Reads a stream until it has had this many events. Returns the last one.
fn read_events(stream: &mut impl BufRead, count: usize) -> Value {
    let (mut line, mut last) = (String::new(), Value::Null);
    for _ in 0..count {
        line.clear();
        while !line.starts_with("data: ") {
            line.clear();
            assert_ne!(stream.read_line(&mut line).expect("an event"), 0, "the stream ended");
        }
        last = serde_json::from_str(&line["data: ".len()..]).expect("json");
    }
    last
}

/// Waits for the end of a stored response. Returns its parts that two computations have in common.
fn outcome(deadly: &Deadly, id: &str) -> Value {
    let fetch = || deadly.server.get(&format!("/v1/responses/{id}")).body;
    deadly.wait_until("the response ends", || fetch()["status"] != "in_progress");
    same_parts(&fetch())
}

fn same_parts(response: &Value) -> Value {
    json!([response["output"][0]["content"], response["status"], response["usage"]["output_tokens"]])
}

#[test]
fn the_journal_continues_a_response_after_the_deaths_of_engine_and_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = ["--exact", "--journal", folder.path().to_str().expect("text")];
    // The tokens that end an answer are never drawn.
    let endless = json!({"2": -100, "4": -100});
    let request = |stream: bool| {
        json!({"model": "tiny", "input": "Go", "seed": 7, "max_output_tokens": 500, "logit_bias": endless,
            "stream": stream, "store": stream})
    };
    let mut deadly = Deadly::start(SERVER, &options);
    let mut stream = BufReader::new(deadly.server.connect("/v1/responses", &request(true)));
    let id = read_events(&mut stream, 1)["response"]["id"].as_str().expect("an id").to_owned();
    read_events(&mut stream, 30);
    deadly.signal("KILL");
    read_events(&mut stream, 30);
    // A stopped child cannot notice the end of its server by itself.
    let child = deadly.child();
    deadly.signal("STOP");
    deadly.server.signal("KILL");
    deadly.server.wait();
    wait_until(|| !exists(child), || "the stopped child outlives its server".to_owned());
    let Deadly { model, .. } = deadly;
    let again = Deadly::start_on(SERVER, model, &options);
    wait_for_work(&again);
    again.signal("KILL");
    let reply = again.server.post("/v1/responses", &request(false));
    assert_eq!(outcome(&again, &id), same_parts(&reply.body), "{}", again.server.log());
    assert_eq!((&reply.body["status"], again.restarts()), (&json!("incomplete"), 1));
}
