//! Random walks along the masks of grammars, with drafts, rollbacks, forks and triggers.

use std::io::Write;

use chat_format::{ConstraintSpec, Grammar, Marker, Scope};
use mlx_core::sampling::{TokenHistory, TokenMask};
use mlx_tests::scale::cases;
use mlx_tests::{Dice, schemas};
use serde_json::json;

use super::{PIECES, WALKER, WIDTH, allowed, of_schema, validates};

/// Checking a draft changes no mask, and its result agrees with the masks, also after rollbacks.
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
    let schemas = cases(80) as u64;
    // Writes the texts to a file for other validators.
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

fn random_allowed(mask: &TokenMask, dice: &mut Dice) -> Option<u32> {
    let tokens: Vec<u32> = (0..WIDTH as u32).filter(|token| mask.allows(*token)).collect();
    (!tokens.is_empty()).then(|| dice.pick(&tokens))
}

/// Random rollbacks and forks: a follower that saw them allows the same tokens as a new one that reads the whole history.
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
                // A fork, a fresh follower of it, and the old follower that moves to it.
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
    assert!(after("x") == all, "the grammar has ended");
    assert!(!after("the").allows(4), "the grammar must apply again");
}
