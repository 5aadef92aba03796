//! Clients that do not share prefixes: cached data of one client never affects the counts, gauges or speed of another's answers.

use mlx_core::cache::DiskOptions;
use mlx_core::engine::{
    Client, DraftCounts, Engine, EngineOptions, Generation, Miss, RequestOptions, Speculate,
};
use mlx_tests::{Outcome, at_rest, collect, device, greedy, model_folder, run};

const MODEL: &str = "llama-f32";

fn start(options: EngineOptions) -> Engine {
    let options = EngineOptions { share_prefixes: false, ..options };
    Engine::start(&model_folder(MODEL), &options, |_, _| {}).expect("it loads")
}

fn prompt(salt: u32, length: u32) -> Vec<u32> {
    (0..length).map(|place| (place * 7 + salt * (place / 10 + 1)) % 80 + 5).collect()
}

fn of(client: u64, tokens: usize) -> RequestOptions {
    RequestOptions { client: Client(client), ..greedy(tokens) }
}

fn cached(outcome: &Outcome) -> usize {
    outcome.finished.usage.cached_tokens
}

#[test]
fn a_client_finds_its_own_prefixes_only() {
    let _turn = device();
    let engine = start(EngineOptions::default());
    let (text, other) = (prompt(1, 100), [&prompt(1, 100)[..90], &[99; 10]].concat());
    let ask = |client, text: &[u32]| {
        let outcome = run(&engine, text, &of(client, 5));
        (cached(&outcome), outcome.finished.usage.miss)
    };
    assert_eq!(ask(1, &text), (0, None));
    assert_eq!(ask(2, &text), (0, None), "the text of another client must not be reused");
    assert_eq!(ask(3, &other), (0, None), "a client's text must not be shared");
    assert_eq!(engine.last_miss(), None);
    assert_eq!(ask(1, &text), (99, None));
    assert_eq!(ask(1, &other), (90, Some(Miss { at: 90, cached: 104 })));
    let shared = Engine::start(&model_folder(MODEL), &EngineOptions::default(), |_, _| {}).expect("it loads");
    assert_eq!([1, 2].map(|client| cached(&run(&shared, &text, &of(client, 5)))), [0, 99], "by default");
}

#[test]
fn prompts_in_flight_are_shared_with_the_same_client_only() {
    let _turn = device();
    let engine = start(EngineOptions::default());
    let text = prompt(2, 150);
    let request = |client| engine.request(text.clone(), &of(client, 5)).expect("valid");
    let requests = [1, 1, 2, 2].map(request).to_vec();
    let all: Vec<Outcome> =
        engine.submit_all(requests).expect("room").into_iter().map(|it: Generation| collect(it)).collect();
    assert_eq!(all.iter().map(cached).collect::<Vec<_>>(), [0, 150, 0, 150]);
    assert_eq!(engine.stats().prompt_tokens, 300);
    assert!(all.iter().all(|outcome| outcome.ids() == all[0].ids()));
}

#[test]
fn answers_are_drafts_of_the_same_client_only() {
    let _turn = device();
    let drafting =
        || EngineOptions { speculate: Speculate::Suffix, force_drafts: true, ..EngineOptions::default() };
    let drafts = |engine: &Engine, client| -> DraftCounts {
        run(engine, &prompt(3, 40), &of(client, 40)).finished.usage.drafts
    };
    let engine = start(drafting());
    let first = drafts(&engine, 1);
    assert_eq!(drafts(&engine, 2), first, "the client must get the figures of a first request");
    let again = drafts(&engine, 1);
    assert!(again.accepted > first.accepted, "the client's own answer must help: {again:?} after {first:?}");
}

#[test]
fn saved_prefixes_come_back_to_their_own_client_only() {
    let _turn = device();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ask = |client, share_prefixes| {
        let prompt_cache = Some(DiskOptions::new(folder.path().to_owned()));
        let options = EngineOptions { prompt_cache, share_prefixes, ..EngineOptions::default() };
        let engine = Engine::start(&model_folder(MODEL), &options, |_, _| {}).expect("it loads");
        let outcome = run(&engine, &prompt(4, 150), &of(client, 5));
        (cached(&outcome), engine.stats().prefix_restores)
    };
    assert_eq!(ask(1, false), (0, 0));
    assert_eq!(ask(2, false), (0, 0), "the prefixes of another client must not be reused");
    assert_eq!(ask(1, true), (0, 0), "prefixes with an owner must not be reused");
    assert_eq!(ask(1, false), (128, 1));
    assert_eq!(ask(3, true), (128, 1), "shared prefixes must be reused");
    assert_eq!(ask(3, false), (0, 0), "shared prefixes belong to no client");
}

#[test]
fn all_clients_together_keep_to_one_limit() {
    let _turn = device();
    let one = {
        let engine = start(EngineOptions::default());
        run(&engine, &prompt(5, 100), &of(1, 5));
        at_rest(&engine).prefix_bytes
    };
    let limit = 3 * one + one / 2;
    let engine = start(EngineOptions { prefix_cache: Some(limit), ..EngineOptions::default() });
    for client in 0..8 {
        run(&engine, &prompt(5, 100), &of(client, 5));
        // Every round uses this prefix.
        let again = run(&engine, &prompt(5, 100), &of(0, 5));
        assert_eq!(cached(&again), 99, "after client {client}");
        let stats = at_rest(&engine);
        assert!(stats.prefix_bytes <= limit && stats.prefixes <= 3, "{stats:?}");
    }
    assert!(
        at_rest(&engine).prefix_evictions >= 5,
        "the least recently used prefix is evicted, of any client"
    );
    assert_eq!(cached(&run(&engine, &prompt(5, 100), &of(7, 5))), 99);
    assert_eq!(cached(&run(&engine, &prompt(5, 100), &of(2, 5))), 0);
}
