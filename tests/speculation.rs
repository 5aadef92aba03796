//! Speculation: drafts change only the speed. `MLX_TEST_SCALE=17` makes a long run.

use std::path::Path;
use std::sync::{Arc, Mutex};

use chat_format::Grammar;
use mlx_core::engine::{CustomDrafter, Drafter, Engine, EngineOptions, RequestOptions, Speculate};
use mlx_core::sampling::{SamplingOptions, TokenHistory};
use mlx_tests::requests::{Request, assert_equal, request, run_under_load};
use mlx_tests::scale::cases;
use mlx_tests::{Dice, Outcome, cpu, greedy, model_copy, model_folder, run, tensors};

use super::exactness::{models, start};

/// Texts that requests are known to generate.
pub(super) type Texts = Arc<Mutex<Vec<Vec<u32>>>>;

/// A drafter that knows the answers, and lies at random.
struct Liar {
    texts: Texts,
    dice: Dice,
}

impl Drafter for Liar {
    fn propose(&mut self, history: &TokenHistory, most: usize, draft: &mut Vec<u32>) -> usize {
        let texts = self.texts.lock().expect("no drafter panics");
        let known = texts.iter().find(|text| text.starts_with(history.tokens()));
        let rest = known.map_or(&[][..], |text| &text[history.len()..]);
        for place in 0..self.dice.below(most + 1) {
            let lies = self.dice.below(4) == 0;
            let truth = rest.get(place).copied().filter(|_| !lies);
            // Some of the lies are not valid tokens.
            draft.push(truth.unwrap_or_else(|| self.dice.below(120) as u32));
        }
        self.dice.below(40)
    }
}

/// Returns these options with a drafter that is often wrong.
pub(super) fn lying(texts: &Texts, options: EngineOptions) -> EngineOptions {
    EngineOptions { speculate: Speculate::Auto, drafter: Some(liar(texts)), force_drafts: true, ..options }
}

fn liar(texts: &Texts) -> CustomDrafter {
    let (texts, count) = (Arc::clone(texts), Arc::new(Mutex::new(0)));
    let make = move || -> Box<dyn Drafter> {
        let mut count = count.lock().expect("no drafter panics");
        *count += 1;
        Box::new(Liar { texts: Arc::clone(&texts), dice: Dice::new(*count) })
    };
    CustomDrafter::new(make)
}

/// Random requests per model.
const REQUESTS: usize = 6;

/// Makes one in five texts follow a grammar.
fn constrained(dice: &mut Dice, mut request: Request) -> Request {
    if dice.below(5) == 0 {
        let grammar =
            dice.pick(&["[a-z ]{3,30}", "(the|a|of)( [a-z]{1,4}){2,9}", "\\{\"name\": \"[a-z]{1,9}\"\\}"]);
        request.options.constraint = Some(Grammar::Regex(grammar.to_owned()).into());
        (request.options.stop, request.options.ignore_eos) = (Vec::new(), false);
    }
    request
}

/// Returns a model with another kind of state.
fn other_model(folder: &Path) -> &'static str {
    let is_recurrent = ["lfm2", "qwen3_5", "nemotron", "falcon", "kimi"]
        .iter()
        .any(|name| folder.to_string_lossy().contains(name));
    if is_recurrent { "gemma2-f32" } else { "qwen3_5-f32" }
}

/// Checks that every verified draft token is counted, accepted or not.
fn assert_counted(engine: &Engine, outcomes: &[Outcome], name: &str) {
    let counts = outcomes.iter().map(|it| it.finished.usage.drafts);
    let (drafted, accepted) =
        counts.fold((0, 0), |sum, it| (sum.0 + it.drafted as u64, sum.1 + it.accepted as u64));
    let stats = engine.stats();
    // The engine's counts include concurrent requests.
    assert!(drafted <= stats.drafted_tokens && accepted <= stats.accepted_tokens, "{name}: {stats:?}");
    assert!(accepted > 0 && accepted < drafted, "{name}: {accepted} of {drafted} tokens were right");
}

#[test]
fn drafts_change_nothing_whether_they_are_right_or_not() {
    let _turn = cpu();
    for (folder, dtype) in models() {
        let plain = EngineOptions {
            prefix_cache: Some(0),
            dtype,
            speculate: Speculate::Off,
            ..EngineOptions::single()
        };
        let single = start(&folder, &plain);
        let name = format!("{} in {}", folder.display(), single.spec().dtype);
        let mut dice = Dice::new(8);
        let requests: Vec<Request> = (0..cases(REQUESTS))
            .map(|_| {
                let request = request(&mut dice, &single);
                constrained(&mut dice, request)
            })
            .collect();
        let expected: Vec<Outcome> =
            requests.iter().map(|it| run(&single, &it.prompt, &it.options)).collect();
        assert_eq!(single.stats().drafted_tokens, 0, "{name}: drafts although they are off");
        drop(single);
        let text =
            |(request, outcome): (&Request, &Outcome)| [request.prompt.clone(), outcome.ids()].concat();
        let texts: Texts = Arc::new(Mutex::new(requests.iter().zip(&expected).map(text).collect()));
        let compare = |outcomes: &[Outcome], how: &str| {
            for (index, (expected, outcome)) in expected.iter().zip(outcomes).enumerate() {
                assert_equal(expected, outcome, &format!("{name}, {how}, request {index}"));
            }
        };
        let drafting = lying(&texts, plain.clone());
        let engine = start(&folder, &drafting);
        let alone: Vec<Outcome> = requests.iter().map(|it| run(&engine, &it.prompt, &it.options)).collect();
        compare(&alone, "a liar, alone");
        assert_counted(&engine, &alone, &name);
        drop(engine);
        let crowded = EngineOptions { max_running: 5, prefix_cache: None, ..drafting };
        let engine = start(&folder, &crowded);
        let loaded = run_under_load(&engine, &requests);
        compare(&loaded, "a liar, in company");
        assert_counted(&engine, &loaded, &name);
        drop(engine);
        // The model's own drafts are right unless a penalty has changed; drafts of another model are not.
        for (draft, how) in [(folder.clone(), "itself"), (model_folder(other_model(&folder)), "another")] {
            let options = EngineOptions {
                speculate: Speculate::Draft,
                draft_model: Some(draft),
                drafter: None,
                ..crowded.clone()
            };
            let engine = start(&folder, &options);
            let loaded = run_under_load(&engine, &requests);
            compare(&loaded, &format!("drafts of {how}, in company"));
            let stats = engine.stats();
            assert!(stats.drafted_tokens > 0, "{name}: no drafts of {how}");
            // All of its own drafts may be right: few requests change a penalty inside a draft.
            assert!(how == "another" || stats.accepted_tokens > 0, "{name}: no draft of {how} was right");
        }
        if folder.to_string_lossy().contains("-mtp-") {
            let options = EngineOptions { speculate: Speculate::Mtp, drafter: None, ..crowded.clone() };
            let engine = start(&folder, &options);
            compare(&run_under_load(&engine, &requests), "drafts of a head, in company");
            assert!(engine.stats().drafted_tokens > 0, "{name}: no drafts of a head");
        }
        let usual = EngineOptions { drafter: None, force_drafts: false, ..crowded };
        let engine = start(&folder, &usual);
        compare(&run_under_load(&engine, &requests), "what is there, in company");
        // The second time, the answers are known.
        compare(&run_under_load(&engine, &requests), "what is there, again");
    }
}

#[test]
fn a_text_that_repeats_itself_takes_fewer_passes() {
    let _turn = cpu();
    let engine = start(&model_folder("llama-f32"), &EngineOptions::default());
    let options = RequestOptions {
        sampling: SamplingOptions {
            temperature: Some(0.0),
            logit_bias: vec![(7, 100.0)],
            ..SamplingOptions::default()
        },
        max_tokens: Some(80),
        ignore_eos: true,
        ..RequestOptions::default()
    };
    let prompt = [vec![3], vec![7; 20]].concat();
    let drafts = run(&engine, &prompt, &options).finished.usage.drafts;
    assert!(drafts.accepted > 20, "{drafts:?}");
    assert!(drafts.drafted - drafts.accepted < 16, "{drafts:?}");
    let off = RequestOptions { speculate: Some(Speculate::Off), ..options };
    assert_eq!(run(&engine, &prompt, &off).finished.usage.drafts.drafted, 0);
}

#[test]
fn a_text_that_a_grammar_leaves_as_the_only_one_is_drafted() {
    let _turn = cpu();
    let options = EngineOptions { force_drafts: true, ..EngineOptions::default() };
    let engine = start(&model_folder("llama-f32"), &options);
    let request = RequestOptions {
        constraint: Some(Grammar::Regex("(yes|no): the the the the the the the the the".into()).into()),
        sampling: SamplingOptions { seed: Some(5), ..SamplingOptions::default() },
        max_tokens: Some(60),
        ..RequestOptions::default()
    };
    let outcome = run(&engine, &[3, 9, 30], &request);
    let drafts = outcome.finished.usage.drafts;
    assert!(drafts.accepted > 4, "{drafts:?} for {:?}", outcome.text);
    let off = RequestOptions { speculate: Some(Speculate::Off), ..request };
    assert_equal(&run(&engine, &[3, 9, 30], &off), &outcome, "a grammar");
}

#[test]
fn a_draft_model_that_cannot_draft_is_refused() {
    let refused = |options: EngineOptions| {
        let folder = model_folder("llama-f32");
        Engine::start(&folder, &options, |_, _| {}).err().expect("it is refused").to_string()
    };
    let draft_model = Some(model_folder("llama-spm-f32"));
    let why = refused(EngineOptions { draft_model, ..EngineOptions::default() });
    assert!(why.starts_with("draft_model: ") && why.contains("has other tokens than llama-f32"), "{why}");
    let why = refused(EngineOptions { speculate: Speculate::Draft, ..EngineOptions::default() });
    assert!(why.starts_with("speculate: is draft"), "{why}");
    let _turn = cpu();
    let engine = start(&model_folder("llama-f32"), &EngineOptions::default());
    let request = RequestOptions { speculate: Some(Speculate::Draft), ..RequestOptions::default() };
    let why = engine.request(vec![3], &request).expect_err("it is refused").to_string();
    assert!(why.starts_with("speculate: is draft"), "{why}");
}

/// Returns a copy of the model with fewer vocabulary rows, like small models of a family.
fn with_vocabulary(size: usize) -> tempfile::TempDir {
    let folder = model_copy("llama-f32");
    let weights = folder.path().join("model.safetensors");
    let mut all = tensors::read(&weights);
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        let (_, shape, bytes) = all.get_mut(name).expect("the model has it");
        bytes.truncate(bytes.len() / shape[0] * size);
        shape[0] = size;
    }
    tensors::write(&weights, &all);
    let config = folder.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("it is there");
    let mut object: serde_json::Value = serde_json::from_str(&text).expect("json");
    object["vocab_size"] = size.into();
    std::fs::write(&config, object.to_string()).expect("it can be written");
    folder
}

/// Reading past the end of the embedding would return no token's row, or memory outside of this program.
#[test]
fn a_draft_model_does_not_draft_behind_tokens_that_it_does_not_know() {
    let _turn = cpu();
    let draft = with_vocabulary(300);
    let plain = EngineOptions { prefix_cache: Some(0), speculate: Speculate::Off, ..EngineOptions::single() };
    let expected = start(&model_folder("llama-f32"), &plain);
    let drafting = EngineOptions {
        speculate: Speculate::Draft,
        draft_model: Some(draft.path().to_owned()),
        force_drafts: true,
        ..plain
    };
    let engine = start(&model_folder("llama-f32"), &drafting);
    let drafted_for = |prompt: &[u32]| {
        let before = engine.stats().drafted_tokens;
        let options = greedy(12);
        assert_eq!(
            run(&engine, prompt, &options).ids(),
            run(&expected, prompt, &options).ids(),
            "{prompt:?}"
        );
        engine.stats().drafted_tokens - before
    };
    assert!(drafted_for(&[20, 30, 40]) > 0);
    assert_eq!(drafted_for(&[20, 300, 40]), 0);
    assert_eq!(drafted_for(&[319]), 0);
    assert!(drafted_for(&[299, 40]) > 0);
}
