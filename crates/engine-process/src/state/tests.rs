//! Tests of the state without a child: its messages are lost.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use mlx_core::engine::{Canceller, Event, Exactness, RemoteRequest, RemoteSequence, TokenOutput};

use super::*;

/// Has a child that runs from now on.
fn run(state: &mut State) {
    let (own, _) = UnixStream::pair().expect("a pair");
    state.phase = Phase::Running(Arc::new(Connection::new(&own).expect("a connection")));
    state.resume();
}

fn die(state: &mut State) {
    state.mourn(Death { kind: Kind::Exit, cause: "ended".into() });
}

/// Adds a sequence that waits for a child.
fn add(state: &mut State, id: u64) -> (async_channel::Receiver<Event>, Canceller) {
    let (events, received) = async_channel::unbounded();
    let (options, exactness) = (Arc::default(), Exactness::Bit);
    let request = RemoteRequest { adapter: 0, prompt: Arc::new(vec![1]), options, seed: 0, exactness };
    let canceller = Canceller::default();
    let remote = RemoteSequence { request, events, canceller: canceller.clone() };
    state.sequences.insert(id, Sequence::new(id, remote));
    (received, canceller)
}

/// Makes a call that submits no sequences.
fn call(state: &mut State, id: u64) -> Receiver<Result<Reply>> {
    let (reply, received) = channel();
    state
        .calls
        .insert(id, Call { frames: Vec::new(), reply, submits: Vec::new(), is_sent: false, deaths: 0 });
    state.send(id);
    received
}

fn start(state: &mut State, id: u64) {
    state.receive(FromChild::Started { id });
}

fn token(state: &mut State, id: u64) {
    let token = TokenOutput { id: 2, text: String::new(), delta: String::new(), logprob: None };
    state.receive(FromChild::Event { id, event: Event::Token(token) });
}

fn submitted(state: &State) -> Vec<u64> {
    state.sequences.iter().filter(|(_, it)| it.is_submitted).map(|(id, _)| *id).collect()
}

/// Returns the reason of the last event.
fn end(events: &async_channel::Receiver<Event>) -> FinishReason {
    let mut events = std::iter::from_fn(|| events.try_recv().ok());
    events
        .find_map(|event| if let Event::Done(finished) = event { Some(finished.reason) } else { None })
        .expect("an end")
}

#[test]
fn answers_do_not_hide_a_step_that_hangs() {
    let mut state = State::default();
    let age = Duration::from_secs(5);
    state.progress.report(true, None);
    let full = state.progress.left().expect("time");
    state.progress.age(age);
    state.receive(FromChild::Stats(EngineStats::default()));
    state.receive(FromChild::Reply { call: 1, reply: Ok(Reply::Submitted) });
    assert!(state.progress.left().expect("time") + age <= full, "the step is as old as before");
    start(&mut state, 1);
    assert!(state.progress.left().expect("time") + age > full, "the engine made progress");
    state.progress.report(false, None);
    state.progress.age(age);
    state.receive(FromChild::Stats(EngineStats::default()));
    assert!(
        state.progress.left().expect("time") + age > state.progress.deadline.answer(),
        "no step hides behind it"
    );
}

#[test]
fn a_sequence_fails_with_its_third_death_without_a_token() {
    let mut state = State::default();
    let (first, _) = add(&mut state, 1);
    let (_second, _) = add(&mut state, 2);
    for _ in 0..2 {
        run(&mut state);
        assert_eq!(submitted(&state), [1, 2]);
        start(&mut state, 1);
        token(&mut state, 1);
        die(&mut state);
    }
    for tried in [vec![1, 2], vec![1]] {
        run(&mut state);
        assert_eq!(submitted(&state), tried);
        start(&mut state, 1);
        die(&mut state);
    }
    assert!(matches!(end(&first), FinishReason::Error(why) if why.contains("3 times without a token")));
    run(&mut state);
    assert_eq!(submitted(&state), [2]);
}

#[test]
fn a_sequence_fails_if_five_children_die_soon_after_it_continues() {
    let mut state = State::default();
    let (first, _) = add(&mut state, 1);
    let (_second, _) = add(&mut state, 2);
    for life in 1..=5 {
        run(&mut state);
        let is_tried_alone = life == 5;
        for id in [1, 2].into_iter().filter(|id| *id == 1 || !is_tried_alone) {
            start(&mut state, id);
            token(&mut state, id);
        }
        assert_eq!(submitted(&state).len(), if is_tried_alone { 1 } else { 2 });
        die(&mut state);
    }
    assert!(matches!(end(&first), FinishReason::Error(why) if why.contains("within 16 tokens")));
    assert_eq!(state.sequences.len(), 1, "the other one is at no fault");
    run(&mut state);
    for made in 0..16 {
        assert!(state.is_trying, "after {made} tokens");
        token(&mut state, 2);
    }
    assert!(!state.is_trying);
}

#[test]
fn a_call_that_kills_children_runs_alone_and_sequences_are_not_blamed() {
    let mut state = State::default();
    let (_first, _) = add(&mut state, 1);
    run(&mut state);
    start(&mut state, 1);
    let (deadly, other) = (call(&mut state, 7), call(&mut state, 8));
    die(&mut state);
    let late = call(&mut state, 9);
    for _ in 0..2 {
        run(&mut state);
        assert!(submitted(&state).is_empty());
        let sent: Vec<u64> = state.calls.iter().filter(|(_, it)| it.is_sent).map(|(id, _)| *id).collect();
        assert_eq!(sent, [7]);
        die(&mut state);
    }
    assert!(matches!(deadly.try_recv(), Ok(Err(Error::Internal(_)))));
    run(&mut state);
    assert!(state.calls[&8].is_sent && !state.calls[&9].is_sent);
    state.receive(FromChild::Reply { call: 8, reply: Ok(Reply::LastMiss(None)) });
    assert!(matches!(other.try_recv(), Ok(Ok(_))));
    assert!(state.calls[&9].is_sent && late.try_recv().is_err());
    assert_eq!(submitted(&state), [1]);
    assert!(!state.sequences[&1].is_suspect());
}

#[test]
fn a_sequence_that_was_cancelled_during_a_restart_is_not_handed_over() {
    let mut state = State::default();
    let (first, canceller) = add(&mut state, 1);
    let (second, _) = add(&mut state, 2);
    let (_third, _) = add(&mut state, 3);
    canceller.cancel();
    drop(second);
    run(&mut state);
    assert_eq!(submitted(&state), [3]);
    assert_eq!((end(&first), state.sequences.len()), (FinishReason::Cancelled, 1));
}

#[test]
fn while_a_machine_is_away_calls_are_refused_and_sequences_wait() {
    let mut state = State::default();
    run(&mut state);
    let (events, _canceller) = add(&mut state, 1);
    let first = call(&mut state, 2);
    state.mourn(Death::lost_machine("rank 1 (two) closed the connection".into()));
    assert_eq!(state.stats().restarts.lost_machine, 1);
    state.wait_for_machine("rank 1 (two) cannot be reached", false);
    let refused = first.try_recv().expect("an answer").map(drop).expect_err("it is refused");
    assert!(matches!(refused, Error::Distributed(message) if message == "rank 1 (two) cannot be reached"));
    assert!(matches!(&state.phase, Phase::Away(why) if why.contains("rank 1")));
    assert!(events.is_empty());
    run(&mut state);
    assert_eq!(submitted(&state), [1], "it continues when the machine is back");
    state.mourn(Death::lost_machine("rank 1 (two) closed the connection".into()));
    state.wait_for_machine("rank 1 (two) cannot be reached", true);
    assert_eq!(end(&events), FinishReason::Error("rank 1 (two) cannot be reached".into()));
    assert!(state.sequences.is_empty());
}
