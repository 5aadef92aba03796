//! What an answer must be, it is: grammars on random walks, in the engine, after thoughts; and what cannot be enforced is refused.

use std::io::Write;
use std::sync::LazyLock;

use mlx_core::ModelFolder;
use mlx_core::engine::{
    Client, ConstraintSpec, Engine, EngineOptions, FinishReason, Grammar, Grammars, Marker, RequestOptions,
    Scope,
};
use mlx_core::sampling::{
    Constraint, Sampler, SamplingOptions, SamplingParams, Scratch, TokenHistory, TokenMask,
};
use mlx_tests::{Dice, collect, device, engine, model_copy, model_folder, outcome, run, schemas, validator};
use serde_json::{Value, json};

/// The length of a row of logits of the fixtures.
const WIDTH: usize = 320;

struct Walker {
    folder: ModelFolder,
    grammars: Grammars,
    /// The length of a row of logits.
    width: usize,
}

static WALKER: LazyLock<Walker> = LazyLock::new(|| Walker::on("llama-f32", WIDTH));
/// Its tokens are pieces of text with bytes for the rest, as sentencepiece has them.
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

    /// The text of a walk along the masks of a constraint in which every token is as likely as any other, but for ends of texts
    /// and brackets; `None` if it does not end soon.
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

/// The word of a validator that shares nothing with the grammars.
fn validates(schema: &Value, text: &str) -> Result<(), String> {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        // JSON has numbers of any size; a float does not.
        Err(error) if error.to_string().starts_with("number out of range") => return Ok(()),
        Err(error) => return Err(format!("{text:?} is no JSON: {error}")),
    };
    validator::check(schema, &value).map_err(|why| format!("{text} against {schema}: {why}"))
}

/// What a draft asks a constraint changes no mask, and the answers agree with the masks: also after rollbacks.
#[test]
fn drafts_learn_what_masks_say_and_change_none() {
    let (mut asked, mut forced_steps) = (0, 0);
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let spec = of_schema(&schemas::schema(&mut dice, 3));
        let mut history = TokenHistory::new(vec![1, 9, 30]);
        let (Ok(mut plain), Ok(mut drafting)) =
            (WALKER.follower(&spec, &history), WALKER.follower(&spec, &history))
        else {
            continue;
        };
        for _ in 0..60 {
            let text = |tokens: &[u32]| -> Vec<u8> {
                tokens.iter().flat_map(|token| WALKER.folder.tokenizer.token_bytes(*token)).collect()
            };
            let forced = drafting.forced_bytes(&history);
            let draft: Vec<u32> = (0..4).map(|_| dice.below(WIDTH) as u32).collect();
            let admitted = drafting.admits(&history, &draft);
            let Ok(mask) = allowed(plain.as_mut(), &history) else { break };
            assert_eq!(allowed(drafting.as_mut(), &history), Ok(mask.clone()), "the masks differ");
            let tokens: Vec<u32> = (0..WIDTH as u32).filter(|&token| mask.allows(token)).collect();
            let ends = |token: &u32| WALKER.folder.end_tokens.contains(token);
            if !ends(&draft[0]) {
                assert_eq!(admitted > 0, tokens.contains(&draft[0]), "{draft:?} of {tokens:?}");
            }
            for token in tokens.iter().filter(|it| !ends(it)) {
                let text = text(&[*token]);
                assert!(text.starts_with(&forced) || forced.starts_with(&text), "{text:?} for {forced:?}");
            }
            asked += 1;
            forced_steps += usize::from(!forced.is_empty());
            let free: Vec<u32> = tokens.into_iter().filter(|it| !ends(it)).collect();
            if free.is_empty() {
                break;
            }
            history.push(free[dice.below(free.len())]);
            if dice.below(8) == 0 {
                history.truncate(history.len() - dice.below(history.generated().len() + 1));
            }
        }
    }
    assert!(asked > 1000 && forced_steps > 100, "{forced_steps} of {asked} places were forced");
}

#[test]
fn every_walk_through_a_schema_validates() {
    let schemas: u64 = std::env::var("SCHEMAS").ok().and_then(|count| count.parse().ok()).unwrap_or(80);
    // For other validators.
    let mut kept = std::env::var("WALKS").ok().map(|path| std::fs::File::create(path).expect("a file"));
    let (mut refused, mut ended) = (0, 0);
    for seed in 0..schemas {
        let schema = schemas::schema(&mut Dice::new(seed), 3);
        let spec = of_schema(&schema);
        for walk in 0..4 {
            let walker = if walk % 2 == 0 { &WALKER } else { &PIECES };
            match walker.walk(&spec, seed * 100 + walk) {
                Ok(None) => {}
                Ok(Some(text)) => {
                    validates(&schema, &text).unwrap_or_else(|why| panic!("{why}"));
                    ended += 1;
                    if let Some(file) = &mut kept {
                        writeln!(file, "{}", json!({ "schema": schema, "text": text }))
                            .expect("it can be written");
                    }
                }
                Err(why) => {
                    assert!(why.starts_with("json_schema: "), "{why}: {schema}");
                    refused += 1;
                    break;
                }
            }
        }
    }
    assert!(refused * 5 < schemas && ended > schemas, "{refused} refused, {ended} ended");
}

#[test]
fn walks_through_other_grammars_are_their_texts() {
    let lark = "start: \"(\" inner \")\"\ninner: /[a-c]{1,3}/ | \"(\" inner \")\" inner\n";
    let balanced =
        |text: &str| text.matches('(').count() == text.matches(')').count() && text.starts_with('(');
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    for seed in 0..40 {
        let text = WALKER.walk(&Grammar::Regex("[0-9]{5}".into()).into(), seed).expect("it can be enforced");
        assert!(text.as_deref().is_some_and(digits), "{text:?}");
        if let Some(text) = WALKER.walk(&Grammar::Lark(lark.into()).into(), seed).expect("it can be enforced")
        {
            assert!(balanced(&text), "{text}");
        }
    }
}

/// What a constraint allows after a history.
fn allowed(follower: &mut dyn Constraint, history: &TokenHistory) -> Result<TokenMask, String> {
    let mut mask = TokenMask::default();
    mask.allow_all(WIDTH);
    follower.restrict(history, &mut mask).map_err(|error| error.to_string())?;
    Ok(mask)
}

fn random_allowed(mask: &TokenMask, dice: &mut Dice) -> Option<u32> {
    let tokens: Vec<u32> = (0..WIDTH as u32).filter(|token| mask.allows(*token)).collect();
    (!tokens.is_empty()).then(|| dice.pick(&tokens))
}

/// Rollbacks and forks at random: the follower that saw them allows what a new one allows that has read the history at once.
#[test]
fn rollbacks_are_followed() {
    let tools = "start: \"{\" /[a-z]{1,4}/ \"}\"";
    let triggered = ConstraintSpec {
        grammar: Grammar::Lark(tools.into()),
        scope: Scope::Triggered(vec![Marker::text("ab"), Marker::text("the")]),
    };
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}});
    for spec in [of_schema(&schema), triggered] {
        for seed in 0..15 {
            let mut dice = Dice::new(seed);
            let mut history = TokenHistory::new(vec![1, 9, 30]);
            let mut follower = WALKER.follower(&spec, &history).expect("it can be enforced");
            for step in 0..60 {
                let mask = allowed(follower.as_mut(), &history).expect("something is allowed");
                // A fork, a fresh follower of it, and the old follower that goes over to it.
                let mut fork = TokenHistory::new(history.tokens()[..3].to_vec());
                let mut fresh = WALKER.follower(&spec, &fork).expect("it can be enforced");
                history.tokens()[3..].iter().for_each(|&token| fork.push(token));
                let again = allowed(fresh.as_mut(), &fork).expect("something is allowed");
                assert!(mask == again, "seed {seed}, step {step}: {:?}", history.generated());
                if dice.below(5) == 0 {
                    assert!(allowed(follower.as_mut(), &fork).is_ok_and(|other| other == mask), "a fork");
                }
                let token = random_allowed(&mask, &mut dice).expect("something is allowed");
                if dice.below(3) == 0 {
                    history.truncate(3 + dice.below(history.generated().len() + 1));
                } else if !WALKER.folder.end_tokens.contains(&token) {
                    history.push(token);
                }
            }
        }
    }
}

#[test]
fn text_is_free_until_a_trigger_and_after_its_grammar() {
    let spec = ConstraintSpec {
        grammar: Grammar::Lark("start: \"no\" | \"nothing\"".into()),
        scope: Scope::Triggered(vec![Marker::text("the")]),
    };
    let mut history = TokenHistory::new(vec![1, 9, 30]);
    let mut follower = WALKER.follower(&spec, &history).expect("it can be enforced");
    let mut all = TokenMask::default();
    all.allow_all(WIDTH);
    let mut after = |text: &str| {
        for letter in text.chars() {
            history.push(WALKER.id(&letter.to_string()));
        }
        allowed(follower.as_mut(), &history).expect("something is allowed")
    };
    assert!(after("x") == all);
    let behind = after("the");
    assert!(behind.allows(WALKER.id("n")) && !behind.allows(WALKER.id("x")) && !behind.allows(4));
    let complete = after("no");
    assert!(complete == all, "the grammar may end here");
    assert!(after("x") == all, "and it has");
    assert!(!after("the").allows(4), "it begins again");
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
    assert_eq!(collect(beside).tokens, alone.tokens, "a request without a constraint draws as before");
}

/// A client that has several sequences gives one up for a client without any; it goes on from its tokens.
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
    assert!(engine.stats().preemptions > 0, "one of them was preempted");
}

/// The fixture with a template that opens a thought, or lets the model open one.
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
        assert!(folder.end_tokens.iter().all(|end| !mask.allows(*end)), "an answer has to come");
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
        // Enforced, refused, or an error of the sequence: but soon.
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
    // A limit of tokens may cut the text, and says so.
    let cut = RequestOptions { max_tokens: Some(2), ..options(0, Grammar::Regex("a{50}".into())) };
    assert_eq!(run(&engine, &[1], &cut).finished.reason, FinishReason::Length);
}
