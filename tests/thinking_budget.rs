//! A budget of thought tokens: never exceeded, and the answer is that of a model that closes its thought at the same token.
//!
//! `MLX_TEST_SCALE=13` makes a run of more than 500 requests.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use chat_format::Grammar;
use chat_format::text::Tokenizer;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions, Resume, Speculate};
use mlx_tests::requests::{Request, assert_equal, request, run_under_load};
use mlx_tests::scale::cases;
use mlx_tests::{Dice, Outcome, collect, cpu, keeps_bits, model_copy, run};
use serde_json::{Value, json};

use crate::exactness::start;
use crate::speculation::{Texts, lying};

/// Attention, a state of constant size, a window, and a head that drafts.
const MODELS: [&str; 4] = ["llama-f32", "falcon_h1-f32", "gemma3_text-f32", "qwen3_5-mtp-f32"];

/// Random requests per model and kind of tags.
const REQUESTS: usize = 5;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// The tags of a model's vocabulary.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Tags {
    /// Two special tokens.
    Special,
    /// Texts of several tokens.
    Text,
}

/// Returns a copy of a model that thinks.
fn thinking_model(name: &str, tags: Tags) -> tempfile::TempDir {
    let folder = model_copy(name);
    let template = "{{ messages[0].content }}<think>{# </think> #}";
    let config = json!({"eos_token": "<|im_end|>", "chat_template": template});
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string())
        .expect("it can be written");
    if tags == Tags::Special {
        edit(&folder.path().join("tokenizer.json"), |file| {
            // The last two merges make way.
            let vocabulary = file["model"]["vocab"].as_object_mut().expect("a vocabulary");
            vocabulary.retain(|_, id| id.as_u64().is_some_and(|id| id < 318));
            vocabulary.extend([(OPEN.to_owned(), json!(318)), (CLOSE.to_owned(), json!(319))]);
            let merges = file["model"]["merges"].as_array_mut().expect("merges");
            merges.truncate(merges.len().saturating_sub(2));
            let added = file["added_tokens"].as_array_mut().expect("a list");
            let mut token = added[0].clone();
            for (id, content) in [(318, OPEN), (319, CLOSE)] {
                (token["id"], token["content"]) = (json!(id), json!(content));
                added.push(token.clone());
            }
        });
    }
    folder
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("json");
    change(&mut value);
    std::fs::write(path, value.to_string()).expect("it can be written");
}

/// The first thought of an answer whose prompt opens it: its number of tokens, and the length with its marker if it is closed.
fn first_thought(tokenizer: &Tokenizer, ids: &[u32]) -> (usize, Option<usize>) {
    let bytes = |token: &u32| match tokenizer.token(*token) {
        Some(name) if tokenizer.is_special(*token) => name.into_bytes(),
        _ => tokenizer.token_bytes(*token),
    };
    let (mut text, mut ends) = (Vec::new(), Vec::new());
    for token in ids {
        text.extend(bytes(token));
        ends.push(text.len());
    }
    let close = text.windows(CLOSE.len()).position(|it| it == CLOSE.as_bytes());
    // A token that contains a part of the marker belongs to the marker, also of a marker that a limit cuts.
    let cut = || (1..CLOSE.len()).rev().find(|length| text.ends_with(&CLOSE.as_bytes()[..*length]));
    let end = close.or_else(|| cut().map(|length| text.len() - length));
    let in_thought = |at: &&usize| end.is_none_or(|end| **at <= end);
    let closed = close.and_then(|at| ends.iter().position(|end| *end >= at + CLOSE.len()));
    (ends.iter().filter(in_thought).count(), closed.map(|last| last + 1))
}

/// A random request for an answer with a budget.
fn thinking_request(dice: &mut Dice, engine: &Engine, bans_close: bool) -> Request {
    let mut request = request(dice, engine);
    let open = engine.folder().tokenizer.encode(OPEN, false).expect("it encodes");
    request.prompt.truncate(engine.spec().context_length - open.len() - 48);
    request.prompt.extend(&open);
    let options = &mut request.options;
    options.is_message = true;
    options.think_budget = Some(dice.pick(&[0, 0, 1, 2, 3, 5, 8, 13, 21]));
    options.max_tokens = Some(20 + dice.below(28));
    if bans_close {
        // The model never closes its thought. The budget is stronger than a bias.
        options.sampling.logit_bias.extend([(319, -30.0), (318, -30.0)]);
    }
    if dice.below(5) == 0 {
        options.constraint = Some(Grammar::Regex("[a-z ]{3,30}".to_owned()).into());
        (options.stop, options.ignore_eos) = (Vec::new(), false);
    }
    request
}

/// Runs a request without a budget after the first `cut` tokens of another run.
fn closed_by_itself(engine: &Engine, request: &Request, known: &Outcome, cut: usize) -> Outcome {
    let options = RequestOptions { think_budget: None, ..request.options.clone() };
    let checked = engine.request(request.prompt.clone(), &options).expect("the request is valid");
    let resume = Resume { tokens: known.ids()[..cut].to_vec(), usage: known.finished.usage };
    let resumed = engine.resumed(checked, resume).expect("the tokens are valid");
    collect(engine.submit(resumed).expect("the engine runs"))
}

/// Returns the events of a run after its first `cut` tokens.
fn after(whole: &Outcome, cut: usize) -> Outcome {
    let tokens = whole.tokens[cut..].to_vec();
    let text =
        tokens.iter().map(|token| token.delta.as_str()).chain([whole.finished.delta.as_str()]).collect();
    Outcome { tokens, text, prompt_tokens: Vec::new(), ..whole.clone() }
}

/// Checks one answer. Returns true if the budget closed its thought.
fn check(engine: &Engine, request: &Request, outcome: &Outcome, about: &str) -> bool {
    let budget = request.options.think_budget.expect("a budget");
    let ids = outcome.ids();
    let (thought, closed) = first_thought(&engine.folder().tokenizer, &ids);
    assert!(thought <= budget, "{about}: {thought} tokens of thought, the budget is {budget}: {ids:?}");
    let free = RequestOptions { think_budget: None, ..request.options.clone() };
    let free = run(engine, &request.prompt, &free);
    // A grammar lets a thought end with whole characters only, which decides its last tokens.
    let decided = if request.options.constraint.is_some() { 3 } else { 0 };
    let same = thought.saturating_sub(decided).min(free.ids().len());
    assert_eq!(ids[..same], free.ids()[..same], "{about}: the thought is that of a run without a budget");
    let Some(cut) = closed else { return false };
    let is_reopened = ids[cut..].contains(&318);
    if !is_reopened {
        let own = closed_by_itself(engine, request, outcome, cut);
        assert_equal(&after(outcome, cut), &own, &format!("{about}, after the thought"));
    }
    thought == budget
}

/// Returns requests with the answers that the model gives alone, which are checked.
fn checked(folder: &Path, name: &str) -> Option<(EngineOptions, Vec<Request>, Vec<Outcome>)> {
    let plain = EngineOptions { prefix_cache: Some(0), speculate: Speculate::Off, ..EngineOptions::single() };
    let single = start(folder, &plain);
    if !keeps_bits(&single) {
        return None;
    }
    let mut dice = Dice::new(29);
    let requests: Vec<Request> =
        (0..cases(REQUESTS)).map(|index| thinking_request(&mut dice, &single, index % 2 == 0)).collect();
    let mut forced = 0;
    let alone: Vec<Outcome> = requests.iter().map(|it| run(&single, &it.prompt, &it.options)).collect();
    for (index, (request, outcome)) in requests.iter().zip(&alone).enumerate() {
        let about = format!("{name}, request {index}: {:?}", request.options);
        forced += usize::from(check(&single, request, outcome, &about));
        // The thoughts before a loss count.
        let cut = dice.below(outcome.tokens.len() + 1);
        let checked = single.request(request.prompt.clone(), &request.options).expect("valid");
        let resume = Resume { tokens: outcome.ids()[..cut].to_vec(), usage: outcome.finished.usage };
        let resumed = single.resumed(checked, resume).expect("the tokens are valid");
        let resumed = collect(single.submit(resumed).expect("the engine runs"));
        assert_eq!(resumed.ids(), outcome.ids()[cut..], "{about}, resumed after {cut} tokens");
    }
    assert!(forced > 0, "{name}: no budget was spent");
    Some((plain, requests, alone))
}

#[test]
fn a_thought_never_exceeds_its_budget_and_the_answer_is_the_models_own() {
    let _turn = cpu();
    for name in MODELS {
        for tags in [Tags::Special, Tags::Text] {
            let model = thinking_model(name, tags);
            let folder: PathBuf = model.path().to_owned();
            let name = format!("{name} with tags as {tags:?}");
            let Some((plain, requests, alone)) = checked(&folder, &name) else { continue };
            let text =
                |(request, outcome): (&Request, &Outcome)| [request.prompt.clone(), outcome.ids()].concat();
            let texts: Texts = Arc::new(Mutex::new(requests.iter().zip(&alone).map(text).collect()));
            // Few slots, so that priorities preempt.
            let crowded = EngineOptions { max_running: 5, ..EngineOptions::default() };
            let drafting = EngineOptions { force_drafts: true, ..crowded.clone() };
            let engines =
                [("in company", crowded), ("with drafts", drafting), ("a liar", lying(&texts, plain))];
            for (how, options) in engines {
                let engine = start(&folder, &options);
                let loaded = run_under_load(&engine, &requests);
                for (index, (alone, loaded)) in alone.iter().zip(&loaded).enumerate() {
                    assert_equal(alone, loaded, &format!("{name}, {how}, request {index}"));
                }
            }
        }
    }
}
