//! The grammars of an engine, compiled once and shared by all requests that use them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use chat_format::text::Tokenizer;
use chat_format::{ConstraintSpec, Grammar, Scope};
use chat_template::guarded;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, ParserFactory};

use super::compiled::Compiled;
use super::follower::follower;
use super::matcher::{Matcher, first_line};
use super::source;
use super::spec::check_form;
use super::target::Target;
use super::triggers::Triggers;
use super::vocabulary::vocabulary;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::sampling::{Constraint, TokenHistory};

/// The maximum number of bytes of compiled grammars that are cached for later requests.
const CACHE_BYTES: usize = 64 << 20;

/// Returns limits on the work of compiling and of computing a mask, and on the states of a lexer. Exceeding them is
/// an error: of the request when the grammar is compiled, of the sequence later.
fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 100_000,
        step_max_items: 50_000,
        max_items_in_row: 2_000,
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Texts that most grammars allow as a whole, so that a mask need not check each of their tokens.
const COMMON: [&str; 4] = [
    r"[\x20\x0A\x0D\x09]+",
    r#"[^"\\\x00-\x1F\x7F]{1,10}"#,
    r#"[^"\\\x00-\x1F\x7F]{1,30}"#,
    r#"[^"\\\x00-\x1F\x7F]+"#,
];

/// The grammars of one engine, or of a program that draws without an engine.
#[derive(Default)]
pub struct Grammars {
    /// Created on first use: it takes up to a second and about 40 bytes per byte of the vocabulary.
    factory: OnceLock<Result<ParserFactory, String>>,
    /// The most recently used grammars, latest last.
    kept: Mutex<Vec<(String, Arc<Compiled>)>>,
}

impl Grammars {
    /// Returns the follower that enforces a constraint on the text after this history, drawn from rows of `width` logits. For programs
    /// without an engine. [`Engine::request`](crate::engine::Engine::request) does this for requests.
    pub fn follower(
        &self,
        spec: &ConstraintSpec,
        folder: &ModelFolder,
        width: usize,
        history: &TokenHistory,
        is_message: bool,
    ) -> Result<Box<dyn Constraint>> {
        check_form(spec)?;
        let target = Target::new(&spec.scope, folder, width).answering(history.tokens(), is_message);
        Ok(follower(self.compile(spec, target)?, history))
    }

    /// Compiles a constraint. This may take tens of milliseconds, so it must not run on an async thread or in a step.
    pub(in crate::engine) fn compile(&self, spec: &ConstraintSpec, target: Target) -> Result<Arc<Compiled>> {
        let field = spec.grammar.field();
        let refused = |why: String| Error::request(field, why);
        check_writable(&spec.grammar, &target.folder.tokenizer)?;
        let whole = source::whole(&spec.grammar, target.preamble.as_ref())?;
        let text =
            serde_json::to_string(&whole).map_err(|error| refused(format!("cannot be read: {error}")))?;
        let key = format!("{text} {:?} {:?}", spec.scope, target.thoughts);
        if let Some(known) = self.find(&key) {
            return Ok(known);
        }
        let factory =
            self.factory.get_or_init(|| factory(&target)).as_ref().map_err(|why| refused(why.clone()))?;
        let start = compiled(factory, whole).map_err(refused)?;
        let triggers = match &spec.scope {
            Scope::Triggered(markers) => {
                Some(Triggers::new(markers, target.thoughts, &start, factory.tok_env()).map_err(refused)?)
            }
            Scope::Answer | Scope::AfterThoughts => None,
        };
        let end_tokens = target.folder.end_tokens.clone();
        let compiled = Compiled::new(start, end_tokens, triggers, text.len()).map_err(refused)?;
        Ok(self.keep(key, Arc::new(compiled)))
    }

    fn find(&self, key: &str) -> Option<Arc<Compiled>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let place = kept.iter().position(|(known, _)| known == key)?;
        let entry = kept.remove(place);
        let compiled = Arc::clone(&entry.1);
        kept.push(entry);
        Some(compiled)
    }

    fn keep(&self, key: String, compiled: Arc<Compiled>) -> Arc<Compiled> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push((key, Arc::clone(&compiled)));
        let mut bytes: usize = kept.iter().map(|(key, it)| key.len() + it.bytes()).sum();
        while bytes > CACHE_BYTES && kept.len() > 1 {
            let (key, oldest) = kept.remove(0);
            bytes -= key.len() + oldest.bytes();
        }
        compiled
    }
}

fn factory(target: &Target) -> Result<ParserFactory, String> {
    let tokens = vocabulary(&target.folder.tokenizer, target.width, &target.folder.end_tokens)?;
    let common = COMMON.map(str::to_owned);
    let mut factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &common)
        .map_err(|error| format!("cannot be enforced on this model: {}", first_line(&error)))?;
    *factory.limits_mut() = limits();
    factory.quiet();
    Ok(factory)
}

/// Compiles a grammar for the factory's model.
fn compiled(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher, String> {
    let parser = on_large_stack(|| factory.create_parser(grammar))?;
    check_lexer(parser.parser.grammar().lexer_spec())?;
    Ok(Matcher::new(parser))
}

/// Refuses a grammar that cannot be compiled for any model.
pub(in crate::engine) fn check(spec: &ConstraintSpec) -> Result<()> {
    let whole = source::whole(&spec.grammar, None)?;
    let grammar = on_large_stack(|| {
        GrammarInit::Serialized(whole).to_cgrammar(None, &mut Logger::new(0, 0), limits(), Vec::new())
    });
    let checked = grammar.and_then(|grammar| check_lexer(grammar.lexer_spec()));
    checked.map_err(|why| Error::request(spec.grammar.field(), why))
}

/// Runs `work` on a large stack, which deeply nested input needs.
fn on_large_stack<T: Send>(work: impl FnOnce() -> anyhow::Result<T> + Send) -> Result<T, String> {
    let outcome = guarded(|| work().map_err(|error| first_line(&error)));
    let outcome = outcome.unwrap_or_else(|| Err("the grammar compiler failed".into()));
    outcome.map_err(|why| format!("cannot be enforced: {why}"))
}

/// Refuses rule settings that do not support rollback.
fn check_lexer(lexer: &LexerSpec) -> Result<(), String> {
    if !lexer.can_rollback() {
        return Err("uses max_tokens or stop in a rule, which is not supported; use suffix".into());
    }
    Ok(())
}

/// Refuses a choice that the model's tokens cannot spell.
fn check_writable(grammar: &Grammar, tokenizer: &Tokenizer) -> Result<()> {
    let Grammar::Choices(choices) = grammar else { return Ok(()) };
    match choices.iter().find(|choice| !can_be_written(choice.as_bytes(), tokenizer)) {
        None => Ok(()),
        Some(choice) => {
            Err(Error::request("choice", format!("has {choice:?}, which the model's tokens cannot spell")))
        }
    }
}

/// Returns true if some sequence of tokens spells exactly these bytes.
fn can_be_written(text: &[u8], tokenizer: &Tokenizer) -> bool {
    let mut is_reached = vec![false; text.len() + 1];
    is_reached[0] = true;
    for place in 0..text.len() {
        if is_reached[place] {
            for (_, length) in tokenizer.prefix_tokens(&text[place..]) {
                is_reached[place + length] = true;
            }
        }
    }
    is_reached[text.len()]
}
