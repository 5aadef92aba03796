//! Splits what a model thinks, between `<think>` and `</think>`, from what it answers. Works on text as it comes,
//! wherever the borders of tokens fall. White space around the tags belongs to neither part.

/// Begins a thought.
pub(crate) const OPEN: &str = "<think>";
/// Ends a thought.
pub(crate) const CLOSE: &str = "</think>";

/// What a piece of text turned out to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// What is thought.
    pub(crate) reasoning: String,
    /// What is said.
    pub(crate) content: String,
}

/// A follower of one answer's text.
#[derive(Debug, Clone)]
pub(crate) struct Splitter {
    place: Place,
    /// Text whose part is not certain yet.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing but white space has come.
    Start,
    /// A thought has begun, but no letter of it has come.
    ThoughtStart,
    Thought,
    /// A thought has ended, but no letter of the answer has come.
    AnswerStart,
    Answer,
}

impl Splitter {
    /// Follows the answer to this prompt, whose end may have begun the thought.
    pub(crate) fn new(prompt: &str) -> Self {
        let thinking = prompt.trim_end().ends_with(OPEN);
        Self { place: if thinking { Place::ThoughtStart } else { Place::Start }, held: String::new() }
    }

    /// Takes the next piece of the text; gives what is certain.
    pub(crate) fn push(&mut self, text: &str) -> Parts {
        let mut parts = Parts::default();
        self.held.push_str(text);
        while self.step(&mut parts) {}
        parts
    }

    /// Takes a tag that is a token of its own without text. Where it has no meaning it is passed over, as other special
    /// tokens are.
    pub(crate) fn push_tag(&mut self, tag: &str) -> Parts {
        match (self.place, tag) {
            (Place::Start, OPEN) | (Place::ThoughtStart | Place::Thought, CLOSE) => self.push(tag),
            _ => Parts::default(),
        }
    }

    /// Takes the end of the text: what was held back is what it looks like.
    pub(crate) fn finish(&mut self) -> Parts {
        let rest = std::mem::take(&mut self.held);
        let (reasoning, content) = match self.place {
            // The answer may be nothing but white space, or end within what looked like a tag.
            Place::Start | Place::Answer => (String::new(), rest),
            Place::AnswerStart => (String::new(), rest.trim_start().to_owned()),
            Place::ThoughtStart | Place::Thought => (rest.trim_end().to_owned(), String::new()),
        };
        Parts { reasoning, content }
    }

    /// Decides what it can of the held text; true if there may be more to decide.
    fn step(&mut self, parts: &mut Parts) -> bool {
        match self.place {
            Place::Start => {
                let trimmed = self.held.trim_start();
                if let Some(rest) = trimmed.strip_prefix(OPEN) {
                    self.go(Place::ThoughtStart, rest.to_owned())
                } else if OPEN.starts_with(trimmed) {
                    false
                } else {
                    self.go(Place::Answer, self.held.clone())
                }
            }
            Place::ThoughtStart | Place::AnswerStart => {
                let rest = self.held.trim_start().to_owned();
                let began = !rest.is_empty();
                let next = match self.place {
                    _ if !began => self.place,
                    Place::ThoughtStart => Place::Thought,
                    _ => Place::Answer,
                };
                self.go(next, rest) && began
            }
            Place::Thought => {
                if let Some((thought, rest)) = self.held.split_once(CLOSE) {
                    parts.reasoning.push_str(thought.trim_end());
                    return self.go(Place::AnswerStart, rest.to_owned());
                }
                let keep = undecided(&self.held);
                let rest = self.held.split_off(self.held.len() - keep);
                parts.reasoning.push_str(&self.held);
                self.held = rest;
                false
            }
            Place::Answer => {
                parts.content.push_str(&self.held);
                self.held.clear();
                false
            }
        }
    }

    fn go(&mut self, place: Place, held: String) -> bool {
        self.place = place;
        self.held = held;
        true
    }
}

/// How many bytes at the end of a thought may belong to its end: part of the tag, and white space before it.
fn undecided(thought: &str) -> usize {
    let tag = (1..CLOSE.len()).rev().find(|length| thought.ends_with(&CLOSE[..*length])).unwrap_or(0);
    let before = &thought[..thought.len() - tag];
    tag + before.len() - before.trim_end().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way to cut the text in two, and letter by letter, gives the same parts.
    fn split(prompt: &str, text: &str) -> (String, String) {
        let run = |pieces: &[&str]| {
            let mut splitter = Splitter::new(prompt);
            let mut all: Vec<Parts> = pieces.iter().map(|piece| splitter.push(piece)).collect();
            all.push(splitter.finish());
            let join =
                |part: fn(&Parts) -> &String| all.iter().map(|it| part(it).as_str()).collect::<String>();
            (join(|it| &it.reasoning), join(|it| &it.content))
        };
        let whole = run(&[text]);
        let borders: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
        for &at in &borders {
            assert_eq!(run(&[&text[..at], &text[at..]]), whole, "cut at {at}");
        }
        let letters: Vec<&str> = borders.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        assert_eq!(run(&letters), whole);
        whole
    }

    #[test]
    fn thought_and_answer_part_at_the_tags() {
        let parts = |reasoning: &str, content: &str| (reasoning.to_owned(), content.to_owned());
        assert_eq!(split("", "<think>\na < b é\n</think>\n\nyes\n"), parts("a < b é", "yes\n"));
        assert_eq!(split("", "\n<think></think>yes"), parts("", "yes"));
        assert_eq!(split("…<think>\n", "so\n\nthen </think> yes"), parts("so\n\nthen", "yes"));
        assert_eq!(split("…<think>\n\n</think>\n\n", "yes"), parts("", "yes"));
        assert_eq!(split("", "<thinking is hard"), parts("", "<thinking is hard"));
        assert_eq!(split("", "say <think> twice </think>"), parts("", "say <think> twice </think>"));
        assert_eq!(split("", "<think>a</think>b</think>c"), parts("a", "b</think>c"));
        assert_eq!(split("", "  spaces stay"), parts("", "  spaces stay"));
    }

    #[test]
    fn an_end_in_the_middle_loses_nothing() {
        assert_eq!(split("", "<thi"), (String::new(), "<thi".to_owned()));
        assert_eq!(split("", "<think>never </thi"), ("never </thi".to_owned(), String::new()));
        assert_eq!(split("", " \n"), (String::new(), " \n".to_owned()));
    }

    #[test]
    fn tags_may_be_tokens_without_text() {
        let mut splitter = Splitter::new("");
        let mut parts = vec![
            splitter.push_tag(CLOSE),
            splitter.push_tag(OPEN),
            splitter.push(" a "),
            splitter.push_tag(OPEN),
        ];
        parts.extend([
            splitter.push_tag(CLOSE),
            splitter.push(" b"),
            splitter.push_tag(CLOSE),
            splitter.finish(),
        ]);
        let join = |part: fn(&Parts) -> &String| parts.iter().map(|it| part(it).as_str()).collect::<String>();
        assert_eq!((join(|it| &it.reasoning), join(|it| &it.content)), ("a".to_owned(), "b".to_owned()));
    }

    #[test]
    fn only_what_is_uncertain_is_held_back() {
        let mut splitter = Splitter::new("<think>");
        assert_eq!(splitter.push("a b").reasoning, "a b");
        assert_eq!(splitter.push(" <").reasoning, "");
        assert_eq!(splitter.push("c").reasoning, " <c");
    }
}
