//! Failures of the Hub and the network: downloads resume, damage is detected, and errors suggest a fix.

use std::fs;
use std::process::{Command, Output};
use std::time::Duration;

use super::{Setup, failed, stderr, succeeded, wait_for};

#[test]
fn cut_connections_are_resumed() {
    let setup = Setup::with("llama-f32");
    let shard = &setup.shards()[0];
    (setup.hub.behave().cuts, setup.hub.behave().cut_after) = (3, setup.size(shard) / 5);
    succeeded(&setup.pull());
    setup.expect_complete();
    assert_eq!(setup.hub.sent(shard), setup.size(shard), "no byte was sent twice");
    let requests = setup.hub.behave().requests.clone();
    assert_eq!(requests.iter().filter(|request| request.range.is_some()).count(), 6, "redirected, each");
}

#[test]
fn a_hub_without_ranges_restarts_the_download() {
    let setup = Setup::with("llama-f32");
    let shard = &setup.shards()[0];
    {
        let mut behavior = setup.hub.behave();
        (behavior.cuts, behavior.cut_after, behavior.ignores_ranges) = (1, 10_000, true);
    }
    succeeded(&setup.pull());
    setup.expect_complete();
    assert_eq!(setup.hub.sent(shard), setup.size(shard) + 10_000);
}

#[test]
fn a_lost_network_keeps_the_partial_download() {
    let setup = Setup::with("llama-f32");
    let shard = &setup.shards()[0];
    (setup.hub.behave().cuts, setup.hub.behave().cut_after) = (1, 20_000);
    setup.hub.behave().pause = Duration::from_millis(5);
    let child = setup.start(&["pull", "org/tiny"]);
    wait_for(|| setup.hub.sent(shard) == 20_000);
    setup.hub.behave().closed = Some((403, ""));
    failed(&child.wait_with_output().expect("it ends"), &["org/tiny", "refuses"]);
    failed(&setup.run(&["generate", "-m", "org/tiny", "-p", "x"]), &["incomplete", "mlx pull org/tiny"]);
    setup.hub.behave().closed = None;
    succeeded(&setup.pull());
    setup.expect_complete();
    assert_eq!(setup.hub.sent(shard), setup.size(shard));
}

/// Sends this signal to the child after it has written part of the first shard; another pull then completes the download.
fn ended_by(signal: &str) -> Output {
    let setup = Setup::with("llama-f32");
    let shard = &setup.shards()[0];
    setup.hub.behave().pause = Duration::from_millis(50);
    let child = setup.start(&["pull", "org/tiny"]);
    let partial = setup.blob(shard).with_added_extension("incomplete");
    wait_for(|| fs::metadata(&partial).is_ok_and(|file| file.len() > 0));
    let kill = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(kill.expect("there is a kill").success());
    let output = child.wait_with_output().expect("it ends");
    assert!(!output.status.success());
    setup.hub.behave().pause = Duration::ZERO;
    let arrived = fs::metadata(&partial).expect("it is kept").len();
    let sent = setup.hub.sent(shard);
    let before = setup.hub.behave().requests.len();
    succeeded(&setup.pull());
    setup.expect_complete();
    let ranges: Vec<_> =
        setup.hub.behave().requests[before..].iter().filter_map(|request| request.range.clone()).collect();
    assert_eq!(ranges[0], format!("bytes={arrived}-"));
    // Bytes still in flight to the first process do not count.
    assert!(setup.hub.sent(shard) - sent <= setup.size(shard) - arrived as usize + 8192);
    output
}

#[test]
fn a_killed_pull_is_resumed() {
    ended_by("-KILL");
}

#[test]
fn an_interrupted_pull_says_how_to_resume() {
    let output = ended_by("-INT");
    assert_eq!(output.status.code(), Some(130));
    assert!(stderr(&output).contains("mlx pull org/tiny"), "{}", stderr(&output));
}

#[test]
fn damage_is_detected_everywhere() {
    let setup = Setup::with("llama-f32");
    let shard = &setup.shards()[0];
    // Damage in transit, twice: an error, and no damaged file remains.
    setup.hub.behave().wrong = 2;
    failed(&setup.pull(), &[shard, "checksum"]);
    assert!(!setup.blob(shard).exists() && !setup.blob(shard).with_added_extension("incomplete").exists());
    // Damage in transit, once: the file is downloaded again.
    setup.hub.behave().wrong = 1;
    let output = setup.pull();
    succeeded(&output);
    assert!(stderr(&output).contains("damaged"));
    setup.expect_complete();
    // Damage in the cache, in a large and a small file.
    for file in [shard, "tokenizer.json"] {
        let blob = setup.blob(file);
        let mut bytes = fs::read(&blob).expect("a file");
        bytes[7] ^= 1;
        fs::write(&blob, bytes).expect("writes");
        failed(&setup.offline(&["pull", "org/tiny"]), &[file, "damaged"]);
        succeeded(&setup.pull());
        setup.expect_complete();
    }
    // Damage in a partial download, also one that is too long.
    for left in [vec![1; 5000], vec![1; setup.size(shard) + 1]] {
        fs::remove_file(setup.blob(shard)).expect("it is there");
        fs::write(setup.blob(shard).with_added_extension("incomplete"), left).expect("writes");
        succeeded(&setup.pull());
        setup.expect_complete();
    }
}

#[test]
fn two_pulls_at_once_share_the_work() {
    let setup = Setup::new();
    setup.hub.behave().pause = Duration::from_millis(10);
    let children = [(); 3].map(|()| setup.start(&["pull", "org/tiny"]));
    for child in children {
        succeeded(&child.wait_with_output().expect("it ends"));
    }
    setup.expect_complete();
    for shard in setup.shards() {
        assert_eq!(setup.hub.sent(&shard), setup.size(&shard), "each byte was sent once");
    }
}

#[test]
fn errors_of_the_hub_say_what_would_help() {
    let setup = Setup::new();
    failed(&setup.run(&["pull", "org/tyni"]), &["org/tyni", "no model of that name", "spelling", "HF_TOKEN"]);
    failed(&setup.run(&["pull", "org/tiny@v9"]), &["no revision v9"]);
    for (status, code, words) in [
        (401, "GatedRepo", ["gated", "terms"]),
        (403, "GatedRepo", ["gated", "HF_TOKEN"]),
        (401, "", ["no model of that name", "HF_TOKEN"]),
        (403, "", ["refuses", "403"]),
        (429, "", ["429", "HF_TOKEN"]),
        (500, "", ["500", "later"]),
        (418, "", ["418", "org/tiny"]),
    ] {
        setup.hub.behave().closed = Some((status, code));
        failed(&setup.pull(), &words);
    }
    setup.hub.behave().closed = Some((401, ""));
    let output = setup.command(&["pull", "org/tiny"]).env("HF_TOKEN", "old").output().expect("it starts");
    failed(&output, &["rejects the token"]);
    let output = setup.command(&["pull", "org/tiny"]).env("HF_ENDPOINT", "http://127.0.0.1:9").output();
    failed(&output.expect("it starts"), &["http://127.0.0.1:9"]);
    for name in ["../x", "a/b/c", "org/tiny@..", ""] {
        assert_eq!(setup.run(&["pull", name]).status.code(), Some(2), "{name}");
    }
    assert!(!setup.repo().exists(), "nothing was written");
}

#[test]
fn server_errors_of_the_hub_are_retried() {
    let setup = Setup::with("llama-f32");
    setup.hub.behave().refuse = (2, 503);
    succeeded(&setup.pull());
    setup.expect_complete();
}
