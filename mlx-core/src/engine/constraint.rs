//! What a request may demand of the text that is generated.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::sampling::{Constraint, Cursor, Since, TokenHistory, TokenMask};
use crate::text::Tokenizer;

/// The most texts of [`ConstraintSpec::Choices`], and the most bytes of each.
const MAX_CHOICES: usize = 256;
const MAX_CHOICE_BYTES: usize = 4096;

/// What the generated text must be. Only [`ConstraintSpec::Choices`] can be enforced so far; the others are refused by
/// name.
#[derive(Debug, Clone, PartialEq)]
pub enum ConstraintSpec {
    /// One of these texts, after which the model must end.
    Choices(Vec<String>),
    /// JSON that a schema accepts.
    JsonSchema(Value),
    /// A text of a grammar.
    Grammar(String),
    /// A text that a regular expression matches as a whole.
    Regex(String),
}

impl ConstraintSpec {
    /// Refuses what cannot be enforced, whatever the model.
    pub(super) fn check_form(&self) -> Result<()> {
        let refused = |what: &str| {
            let message = format!("{what} cannot be enforced yet; choices, a list of texts, can");
            Err(Error::request("constraint", message))
        };
        match self {
            Self::Choices(choices) => check_choices(choices),
            Self::JsonSchema(_) => refused("a JSON schema"),
            Self::Grammar(_) => refused("a grammar"),
            Self::Regex(_) => refused("a regular expression"),
        }
    }

    /// Refuses what cannot be enforced on a model with this vocabulary, whose text these tokens end.
    pub(super) fn check(&self, tokenizer: &Tokenizer, end_tokens: &[u32]) -> Result<()> {
        let Self::Choices(choices) = self else { return Ok(()) };
        if end_tokens.is_empty() {
            let message = "needs a token that ends the text: the model has none, or ignore_eos is on";
            return Err(Error::request("constraint", message));
        }
        match choices.iter().find(|choice| !can_be_written(choice.as_bytes(), tokenizer)) {
            None => Ok(()),
            Some(choice) => {
                let message = format!("holds {choice:?}, which the model's tokens cannot write");
                Err(Error::request("constraint", message))
            }
        }
    }

    /// What enforces it on a sequence that has this prompt. `None` for what `check_form` refuses.
    pub(super) fn enforce(
        &self,
        tokenizer: &Tokenizer,
        end_tokens: &[u32],
        history: &TokenHistory,
    ) -> Option<Box<dyn Constraint>> {
        let Self::Choices(choices) = self else { return None };
        Some(Box::new(ChoiceConstraint::new(choices, tokenizer.clone(), end_tokens.to_vec(), history)))
    }
}

fn check_choices(choices: &[String]) -> Result<()> {
    if choices.is_empty() || choices.len() > MAX_CHOICES {
        let message = format!("has {} choices; it must have from 1 to {MAX_CHOICES}", choices.len());
        return Err(Error::request("constraint", message));
    }
    if choices.iter().any(|choice| choice.is_empty() || choice.len() > MAX_CHOICE_BYTES) {
        let message = format!("has an empty choice or one of more than {MAX_CHOICE_BYTES} bytes");
        return Err(Error::request("constraint", message));
    }
    Ok(())
}

/// Whether some tokens together are exactly these bytes.
fn can_be_written(text: &[u8], tokenizer: &Tokenizer) -> bool {
    let mut is_reached = vec![false; text.len() + 1];
    is_reached[0] = true;
    for place in 0..text.len() {
        if is_reached[place] {
            for (_, length) in tokenizer.index().beginnings(&text[place..]) {
                is_reached[place + length] = true;
            }
        }
    }
    is_reached[text.len()]
}

/// Allows the tokens that continue one of the choices, and an end token exactly when one is complete.
struct ChoiceConstraint {
    choices: Vec<Vec<u8>>,
    tokenizer: Tokenizer,
    end_tokens: Vec<u32>,
    cursor: Cursor,
    /// The position of the first generated token.
    start: usize,
    /// The bytes of the generated tokens, and where each token ends in them.
    written: Vec<u8>,
    ends: Vec<usize>,
}

impl ChoiceConstraint {
    /// Follows `history` from its end: the prompt is not part of the text.
    fn new(choices: &[String], tokenizer: Tokenizer, end_tokens: Vec<u32>, history: &TokenHistory) -> Self {
        let mut cursor = Cursor::default();
        history.since(&mut cursor);
        let choices = choices.iter().map(|choice| choice.as_bytes().to_vec()).collect();
        let (start, written, ends) = (history.len(), Vec::new(), Vec::new());
        Self { choices, tokenizer, end_tokens, cursor, start, written, ends }
    }

    fn sync(&mut self, history: &TokenHistory) {
        let tokens = match history.since(&mut self.cursor) {
            Since::Append(tokens) => tokens,
            Since::Truncated { to, tail } => {
                self.ends.truncate(to.saturating_sub(self.start));
                self.written.truncate(self.ends.last().copied().unwrap_or(0));
                // The follower of a fork is given the prompt again.
                tail.get(self.start.saturating_sub(to)..).unwrap_or_default()
            }
        };
        for &token in tokens {
            self.written.extend(self.tokenizer.token_bytes(token));
            self.ends.push(self.written.len());
        }
    }
}

impl Constraint for ChoiceConstraint {
    fn restrict(&mut self, history: &TokenHistory, allowed: &mut TokenMask) -> Result<()> {
        self.sync(history);
        allowed.forbid_all();
        let index = self.tokenizer.index();
        for rest in self.choices.iter().filter_map(|choice| choice.strip_prefix(self.written.as_slice())) {
            if rest.is_empty() {
                self.end_tokens.iter().for_each(|&token| allowed.allow(token));
            }
            index.beginnings(rest).for_each(|(token, _)| allowed.allow(token));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::sampling::{Sampler, SamplingOptions, SamplingParams, Scratch, TokenTable};

    const WIDTH: usize = 320;
    const END: u32 = 4;

    fn tokenizer() -> Tokenizer {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models");
        Tokenizer::load(&models.join("llama-f32")).expect("the fixture loads")
    }

    fn sampler(choices: &[&str], tokenizer: &Tokenizer, history: &TokenHistory) -> Sampler {
        let greedy = SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() };
        let params = SamplingParams::resolve(&greedy, &SamplingOptions::default()).expect("valid");
        let of_token = tokenizer.clone();
        let text = Arc::new(move |id| of_token.token_bytes(id));
        let table = TokenTable { text, protected: Arc::new([]) };
        let spec = ConstraintSpec::Choices(choices.iter().map(ToString::to_string).collect());
        let constraint = spec.enforce(tokenizer, &[END], history).expect("choices can be enforced");
        Sampler::new(params, None, &table).with_constraint(constraint)
    }

    /// The token that is drawn when the model finds these the likeliest, best first.
    fn draw(sampler: &mut Sampler, history: &TokenHistory, wishes: &[u32]) -> u32 {
        let mut row = vec![0.0; WIDTH];
        for (place, &token) in wishes.iter().enumerate() {
            row[token as usize] = 100.0 - place as f32;
        }
        sampler.draw_row(&row, history, &mut Scratch::default()).expect("something is allowed").token
    }

    #[test]
    fn the_text_is_a_choice_and_then_ends() {
        let tokenizer = tokenizer();
        let id = |text: &str| tokenizer.id(text).expect("a token");
        let mut history = TokenHistory::new(vec![1, 9, 30]);
        let mut sampler = sampler(&["no", "nothing"], &tokenizer, &history);
        // Neither an end nor another text, whatever the model likes.
        assert_eq!(draw(&mut sampler, &history, &[END, id("x"), id("n")]), id("n"));
        history.push(id("n"));
        assert_eq!(draw(&mut sampler, &history, &[END, id("o")]), id("o"));
        history.push(id("o"));
        // "no" is complete and a beginning of the other.
        assert_eq!(draw(&mut sampler, &history, &[id("x"), END, id("t")]), END);
        assert_eq!(draw(&mut sampler, &history, &[id("x"), id("t"), END]), id("t"));
        history.push(id("t"));
        history.push(id("h"));
        assert_eq!(draw(&mut sampler, &history, &[END, id("i"), id("ing")]), id("i"));
        assert_eq!(draw(&mut sampler, &history, &[END, id("ing"), id("i")]), id("ing"));
        history.push(id("ing"));
        assert_eq!(draw(&mut sampler, &history, &[id("i"), id("n"), END]), END);
    }

    #[test]
    fn a_rollback_is_followed() {
        let tokenizer = tokenizer();
        let id = |text: &str| tokenizer.id(text).expect("a token");
        let mut history = TokenHistory::new(vec![1, 9, 30]);
        let mut sampler = sampler(&["ab", "ba"], &tokenizer, &history);
        history.push(id("a"));
        assert_eq!(draw(&mut sampler, &history, &[id("a"), id("b")]), id("b"));
        history.push(id("b"));
        assert_eq!(draw(&mut sampler, &history, &[id("a"), END]), END);
        history.truncate(3);
        history.push(id("b"));
        assert_eq!(draw(&mut sampler, &history, &[END, id("b"), id("a")]), id("a"));
        let mut fork = history.clone();
        fork.push(id("a"));
        assert_eq!(draw(&mut sampler, &fork, &[id("a"), END]), END);
        assert_eq!(draw(&mut sampler, &history, &[END, id("b"), id("a")]), id("a"));
    }

    #[test]
    fn what_cannot_be_enforced_is_refused_by_name() {
        let tokenizer = tokenizer();
        let choices =
            |texts: &[&str]| ConstraintSpec::Choices(texts.iter().map(ToString::to_string).collect());
        let refusal = |spec: &ConstraintSpec, ends: &[u32]| {
            let refused = spec.check_form().and_then(|()| spec.check(&tokenizer, ends));
            refused.expect_err("it must be refused").to_string()
        };
        assert!(choices(&["yes", "no"]).check(&tokenizer, &[END]).is_ok());
        assert!(choices(&["é🦀\n"]).check(&tokenizer, &[END]).is_ok());
        for (spec, ends, word) in [
            (choices(&[]), &[END][..], "choices"),
            (choices(&["a", ""]), &[END], "empty"),
            (choices(&["a"]), &[], "ignore_eos"),
            (ConstraintSpec::JsonSchema(Value::Null), &[END], "JSON schema"),
            (ConstraintSpec::Grammar("start: A".into()), &[END], "grammar"),
            (ConstraintSpec::Regex("a*".into()), &[END], "regular expression"),
        ] {
            let message = refusal(&spec, ends);
            assert!(message.starts_with("constraint: ") && message.contains(word), "{message}");
        }
    }
}
