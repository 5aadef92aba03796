//! Constrained answers: grammars hold in the engine and after reasoning, and grammars that cannot be enforced are rejected.

mod forms;
mod walks;

use std::sync::LazyLock;

use chat_format::{ConstraintSpec, Grammar};
use mlx_core::ModelFolder;
use mlx_core::engine::{Client, Engine, EngineOptions, FinishReason, Grammars, RequestOptions};
use mlx_core::sampling::{
    Constraint, Sampler, SamplingOptions, SamplingParams, Scratch, TokenHistory, TokenMask,
};
use mlx_tests::{Dice, collect, device, engine, model_copy, model_folder, outcome, run, validator};
use serde_json::{Value, json};

/// The width of a row of the fixtures' logits.
const WIDTH: usize = 320;

struct Walker {
    folder: ModelFolder,
    grammars: Grammars,
    /// The width of a row of logits.
    width: usize,
}

static WALKER: LazyLock<Walker> = LazyLock::new(|| Walker::on("llama-f32", WIDTH));
/// A tokenizer in the style of sentencepiece: its tokens are text pieces, with byte fallback.
static PIECES: LazyLock<Walker> = LazyLock::new(|| Walker::on("llama-spm-f32", 384));

impl Walker {
    fn on(model: &str, width: usize) -> Self {
        let folder = ModelFolder::open(&model_folder(model)).expect("the fixture opens");
        Self { folder, grammars: Grammars::default(), width }
    }

    fn follower(&self, spec: &ConstraintSpec, history: &TokenHistory) -> Result<Box<dyn Constraint>, String> {
        let follower = self.grammars.follower(spec, &self.folder, self.width, history, false);
        follower.map_err(|error| error.to_string())
    }

    fn id(&self, text: &str) -> u32 {
        self.folder.tokenizer.id(text).unwrap_or_else(|| panic!("{text:?} is a token"))
    }

    /// Returns the text of a random walk along the masks of a constraint. All tokens are equally likely, except ends of texts and brackets.
    /// Returns `None` if the walk does not end soon.
    fn walk(&self, spec: &ConstraintSpec, seed: u64) -> Result<Option<String>, String> {
        let mut history = TokenHistory::new(vec![1, 9, 30]);
        let options = SamplingOptions { seed: Some(seed), ..SamplingOptions::default() };
        let params = SamplingParams::resolve(&options, &SamplingOptions::default()).expect("valid");
        let follower = self.follower(spec, &history)?;
        let mut sampler = Sampler::new(params, None, &self.folder.token_table).with_constraint(follower);
        let mut row = vec![0.0; self.width];
        let mut dice = Dice::new(seed);
        for closing in ["\"", "}", "]", "\"}", ","] {
            if let Some(id) = self.folder.tokenizer.id(closing) {
                row[id as usize] = dice.below(6) as f32;
            }
        }
        self.folder.end_tokens.iter().for_each(|&end| row[end as usize] = 3.0);
        for _ in 0..400 {
            let drawn = sampler.draw_row(&row, &history, &mut Scratch::default());
            let token = drawn.map_err(|error| error.to_string())?.token;
            if self.folder.end_tokens.contains(&token) {
                return Ok(Some(self.folder.tokenizer.decode(history.generated(), true)));
            }
            history.push(token);
        }
        Ok(None)
    }
}

fn of_schema(schema: &Value) -> ConstraintSpec {
    Grammar::JsonSchema(schema.clone()).into()
}

/// Validates with code that shares nothing with the grammars.
fn validates(schema: &Value, text: &str) -> Result<(), String> {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        // JSON numbers have no size limit; floats do.
        Err(error) if error.to_string().starts_with("number out of range") => return Ok(()),
        Err(error) => return Err(format!("{text:?} is no JSON: {error}")),
    };
    validator::check(schema, &value).map_err(|why| format!("{text} against {schema}: {why}"))
}

/// Returns the tokens that a constraint allows after a history.
fn allowed(follower: &mut dyn Constraint, history: &TokenHistory) -> Result<TokenMask, String> {
    let mut mask = TokenMask::default();
    mask.allow_all(WIDTH);
    follower.restrict(history, &mut mask).map_err(|error| error.to_string())?;
    Ok(mask)
}

fn options(seed: u64, grammar: Grammar) -> RequestOptions {
    RequestOptions {
        sampling: SamplingOptions { temperature: Some(1.5), seed: Some(seed), ..SamplingOptions::default() },
        max_tokens: Some(200),
        exact: Some(true),
        constraint: Some(grammar.into()),
        ..RequestOptions::default()
    }
}

#[test]
fn answers_of_an_engine_validate_alone_and_in_company() {
    let _turn = device();
    let engine = engine("llama-f32");
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "ages": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 0}, "maxItems": 3}},
        "required": ["name", "ages"],
        "additionalProperties": false,
    });
    let asked = |seed| options(seed, Grammar::JsonSchema(schema.clone()));
    let free = RequestOptions { constraint: None, ..asked(5) };
    let alone = run(&engine, &[1, 9, 30], &free);
    let requests = (0..20).map(|seed| engine.request(vec![1, 9, 30], &asked(seed)).expect("valid"));
    let company = engine.submit_all(requests.collect()).expect("room");
    let beside = engine.submit(engine.request(vec![1, 9, 30], &free).expect("valid")).expect("room");
    let mut whole = 0;
    for (seed, generation) in company.into_iter().enumerate() {
        let outcome = collect(generation);
        match outcome.finished.reason {
            FinishReason::EndToken => {
                validates(&schema, &outcome.text).unwrap_or_else(|why| panic!("{why}"));
                whole += 1;
            }
            ref other => assert_eq!(*other, FinishReason::Length, "{}", outcome.text),
        }
        if seed < 4 {
            let again = run(&engine, &[1, 9, 30], &asked(seed as u64));
            assert_eq!((again.text, again.tokens), (outcome.text, outcome.tokens));
        }
    }
    assert!(whole >= 15, "{whole} of 20 ended");
    assert_eq!(
        collect(beside).tokens,
        alone.tokens,
        "a request without a constraint draws the same tokens as alone"
    );
}

/// A client with several sequences loses one to a client without any; the sequence resumes from its tokens.
#[test]
fn a_preempted_sequence_goes_on_in_its_grammar() {
    let _turn = device();
    let start = EngineOptions { max_running: 2, ..EngineOptions::default() };
    let engine = Engine::start(&model_folder("llama-f32"), &start, |_, _| {}).expect("the fixture loads");
    let asked = |seed, client| RequestOptions {
        client: Client(client),
        ..options(seed, Grammar::Regex("([a-z] ?){150}".into()))
    };
    let alone: Vec<_> = (0..2).map(|seed| run(&engine, &[1, 9, 30], &asked(seed, 1)).tokens).collect();
    let request = |seed, client| engine.request(vec![1, 9, 30], &asked(seed, client)).expect("valid");
    let mut company = engine.submit_all(vec![request(0, 1), request(1, 1)]).expect("room");
    let first = company[0].next();
    let other = engine.submit(request(2, 2)).expect("room");
    collect(other);
    for (generation, (alone, first)) in company.into_iter().zip(alone.into_iter().zip([first, None])) {
        let events = first.into_iter().chain(generation);
        assert_eq!(outcome(events).tokens, alone);
    }
    assert!(engine.stats().preemptions > 0, "no sequence was preempted");
}

/// Returns the fixture with a template that opens a reasoning block, or lets the model open one.
fn thinking(prompt_end: &str) -> tempfile::TempDir {
    let folder = model_copy("llama-f32");
    let template = format!("{{{{ messages[0].content }}}}{{# <think> </think> #}}{prompt_end}");
    std::fs::write(folder.path().join("chat_template.jinja"), template).expect("it can be written");
    folder
}

#[test]
fn an_answer_is_constrained_behind_its_thoughts() {
    for (prompt_end, text, next) in [
        ("<think>\n", "any {text} at all", None),
        ("<think>\n", "any text</think>", Some("{")),
        ("<think>\n", "a</think>\n\n", Some("{")),
        ("", "<think>a</think>", Some("{")),
        ("", "", Some("{")),
    ] {
        let folder = thinking(prompt_end);
        let folder = ModelFolder::open(folder.path()).expect("the fixture opens");
        let prompt = folder.tokenizer.encode(&format!("Hi{prompt_end}"), false).expect("it encodes");
        let mut history = TokenHistory::new(prompt);
        let spec = of_schema(&json!({"type": "object"}));
        let follower = WALKER.grammars.follower(&spec, &folder, WIDTH, &history, true);
        let mut follower = follower.expect("it can be enforced");
        for token in folder.tokenizer.encode(text, false).expect("it encodes") {
            let mask = allowed(follower.as_mut(), &history).expect("something is allowed");
            assert!(mask.allows(token), "{token} in {text:?}");
            history.push(token);
        }
        let mask = allowed(follower.as_mut(), &history).expect("something is allowed");
        let letter = mask.allows(WALKER.id("x"));
        assert_eq!((letter, mask.allows(WALKER.id("{"))), (next.is_none(), true), "after {text:?}");
        assert!(
            folder.end_tokens.iter().all(|end| !mask.allows(*end)),
            "the text must not end before the answer"
        );
    }
}

#[test]
fn what_cannot_be_enforced_is_refused_by_name() {
    let refused = |grammar: Grammar| WALKER.walk(&grammar.into(), 0).expect_err("it must be refused");
    let nested = |levels: usize| (0..levels).fold(json!({}), |inner, _| json!({ "items": inner }));
    for (schema, word) in [
        (json!({"not": {}}), "not"),
        (json!({"properties": {"a": {"uniqueItems": true}}}), "uniqueItems at #/properties/a"),
        (json!({"x-guidance": {"lenient": true}}), "x-guidance"),
        (json!({"$ref": "https://example.org/schema"}), "example.org"),
        (json!({"$ref": "#/title", "title": {"not": {}}}), "#/title"),
        (json!({"type": "object", "minProperties": 2}), "minProperties"),
        (json!({"const": 9_007_199_254_740_993_i64}), "15 digits"),
        (json!({"type": "string", "format": "iri"}), "iri"),
        (json!({"type": "string", "pattern": "(?=a)b"}), ""),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf"),
        (json!(false), "false"),
        (json!("object"), "object"),
        (nested(100), "nested"),
    ] {
        let why = refused(Grammar::JsonSchema(schema.clone()));
        assert!(why.starts_with("json_schema: ") && why.contains(word), "{schema}: {why}");
    }
    for (grammar, start) in [
        (Grammar::Regex("(".into()), "regex: "),
        (Grammar::Regex("(?=a)".into()), "regex: "),
        (Grammar::Regex(String::new()), "regex: "),
        (Grammar::Lark("start: missing".into()), "grammar: "),
        (Grammar::Lark("start[temperature=0.5]: \"a\"".into()), "grammar: "),
        (Grammar::Lark("start: a\na[max_tokens=5]: /.*/".into()), "grammar: "),
        (Grammar::Lark("%llguidance {}\nstart: \"a\"".into()), "grammar: "),
        (Grammar::Choices(vec![]), "choice: "),
    ] {
        let why = refused(grammar.clone());
        assert!(why.starts_with(start), "{grammar:?}: {why}");
    }
}

#[test]
fn a_hostile_grammar_is_an_error_of_its_request() {
    let wide = |count: usize| -> Value {
        (0..count).map(|index| (format!("k{index}"), json!({"type": "string"}))).collect()
    };
    let doubled =
        (0..40).fold(json!({"type": "integer"}), |inner, _| json!({"anyOf": [inner.clone(), {"items": {}}]}));
    let defs: Value = (0..60)
        .map(|index| {
            let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
            (format!("d{index}"), json!({"allOf": [next.clone(), next]}))
        })
        .chain([("d60".to_owned(), json!({"type": "object"}))])
        .collect();
    let grammars = [
        Grammar::JsonSchema(json!({"type": "string", "pattern": "((a{1,900}){1,900}){1,900}"})),
        Grammar::JsonSchema(json!({"type": "string", "minLength": 1_000_000_000})),
        Grammar::JsonSchema(json!({"type": "array", "minItems": 1_000_000_000})),
        Grammar::JsonSchema(
            json!({"type": "array", "items": {"type": "array", "minItems": 50_000}, "minItems": 50_000}),
        ),
        Grammar::JsonSchema(json!({"properties": wide(20_000)})),
        Grammar::JsonSchema(json!({"$ref": "#/$defs/d0", "$defs": defs})),
        Grammar::JsonSchema(json!({"$ref": "#"})),
        Grammar::JsonSchema(json!({"enum": (0..50_000).map(|n| format!("{n}{n}{n}")).collect::<Vec<_>>()})),
        Grammar::JsonSchema(doubled),
        Grammar::Regex("(.*a){20}.{500}b".into()),
        Grammar::Regex(format!("{}{}", "(".repeat(5000), ")".repeat(5000))),
        Grammar::Lark(format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000))),
        Grammar::Lark("start: start start | \"a\" | \"\"".into()),
        Grammar::Lark("start: start".into()),
    ];
    for grammar in grammars {
        let spec = ConstraintSpec::from(grammar);
        let begun = std::time::Instant::now();
        // It is enforced, rejected, or an error of the sequence, but it must end soon.
        let outcome = WALKER.walk(&spec, 1);
        let seconds = begun.elapsed().as_secs_f64();
        assert!(seconds < 20.0, "{seconds} s: {:.200} {outcome:?}", format!("{spec:?}"));
    }
    assert!(WALKER.walk(&of_schema(&json!({"type": "boolean"})), 1).is_ok_and(|text| text.is_some()));
}

#[test]
fn a_constraint_allows_no_other_end() {
    let _turn = device();
    let engine = engine("llama-f32");
    let grammar = || Grammar::Regex("a+".into());
    let constrained = options(0, grammar());
    for (field, options) in [
        ("ignore_eos", RequestOptions { ignore_eos: true, ..constrained.clone() }),
        ("stop", RequestOptions { stop: vec!["a".into()], ..constrained.clone() }),
    ] {
        let error = engine.request(vec![1], &options).expect_err("it must be refused").to_string();
        assert!(error.starts_with(&format!("{field}: ")), "{error}");
    }
    // A token limit may cut the text, and the finish reason reports it.
    let cut = RequestOptions { max_tokens: Some(2), ..options(0, Grammar::Regex("a{50}".into())) };
    assert_eq!(run(&engine, &[1], &cut).finished.reason, FinishReason::Length);
}
