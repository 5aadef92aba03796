//! Assembles the deltas of an answer into consecutive blocks. Invariant: whole answers and streams are made from the same steps.

use mlx_json::{Map, Value};

use super::answer::{BlockDelta, ContentBlock};
use super::signature;
use super::thinking::Display;
use crate::delta::{CallDelta, Delta};

/// The field for arguments that are not a JSON object.
const UNPARSED: &str = "unparsed_arguments";

/// A change of the latest block.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// A new, empty block.
    Open(ContentBlock),
    /// A delta.
    Delta(BlockDelta),
    /// The end of the block.
    Close,
}

/// The kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thought,
    Text,
    Call,
}

/// The state of the current block.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    display: Display,
    open: Option<Kind>,
    /// The thinking of the open block, if its text is withheld.
    withheld: String,
}

impl Assembly {
    /// Creates a state without an open block.
    pub(super) fn new(display: Display) -> Self {
        Self { display, ..Self::default() }
    }

    /// Returns the steps of a delta.
    pub(super) fn delta(&mut self, delta: Delta) -> Vec<Step> {
        let mut steps = Vec::new();
        if !delta.reasoning.is_empty() {
            self.enter(Kind::Thought, &mut steps, || ContentBlock::Thinking {
                thinking: String::new(),
                signature: String::new(),
            });
            match self.display {
                Display::Omitted => self.withheld.push_str(&delta.reasoning),
                Display::Text => {
                    steps.push(Step::Delta(BlockDelta::Thinking { thinking: delta.reasoning }));
                }
            }
        }
        if !delta.content.is_empty() {
            self.enter(Kind::Text, &mut steps, || ContentBlock::Text {
                text: String::new(),
                citations: None,
            });
            steps.push(Step::Delta(BlockDelta::Text { text: delta.content }));
        }
        for call in delta.calls {
            self.call(call, &mut steps);
        }
        if delta.end.is_some() {
            self.close(&mut steps);
        }
        steps
    }

    fn call(&mut self, CallDelta { head, arguments, .. }: CallDelta, steps: &mut Vec<Step>) {
        if let Some((id, name)) = head {
            self.close(steps);
            self.open = Some(Kind::Call);
            let id = format!("toolu_{id}");
            steps.push(Step::Open(ContentBlock::ToolUse { id, name, input: Map::new() }));
        }
        if !arguments.is_empty() {
            steps.push(Step::Delta(BlockDelta::Input { partial_json: arguments }));
        }
    }

    /// Opens a block of this kind unless one is open.
    fn enter(&mut self, kind: Kind, steps: &mut Vec<Step>, block: impl FnOnce() -> ContentBlock) {
        if self.open != Some(kind) {
            self.close(steps);
            self.open = Some(kind);
            steps.push(Step::Open(block()));
        }
    }

    fn close(&mut self, steps: &mut Vec<Step>) {
        let Some(kind) = self.open.take() else { return };
        if kind == Kind::Thought {
            let signature = match self.display {
                Display::Omitted => signature::carrying(&std::mem::take(&mut self.withheld)),
                Display::Text => signature::plain(),
            };
            steps.push(Step::Delta(BlockDelta::Signature { signature }));
        }
        steps.push(Step::Close);
    }
}

/// Returns the blocks that the steps produce.
pub(super) fn blocks(steps: impl IntoIterator<Item = Step>) -> Vec<ContentBlock> {
    let (mut blocks, mut json) = (Vec::new(), String::new());
    for step in steps {
        match step {
            Step::Open(block) => blocks.push(block),
            Step::Delta(delta) => {
                if let Some(block) = blocks.last_mut() {
                    add(block, delta, &mut json);
                }
            }
            Step::Close => {
                if let Some(ContentBlock::ToolUse { input, .. }) = blocks.last_mut() {
                    *input = input_of(std::mem::take(&mut json));
                }
            }
        }
    }
    blocks
}

fn add(block: &mut ContentBlock, delta: BlockDelta, json: &mut String) {
    match (block, delta) {
        (ContentBlock::Text { text, .. }, BlockDelta::Text { text: more }) => text.push_str(&more),
        (ContentBlock::Thinking { thinking, .. }, BlockDelta::Thinking { thinking: more }) => {
            thinking.push_str(&more);
        }
        (ContentBlock::Thinking { signature, .. }, BlockDelta::Signature { signature: new_signature }) => {
            *signature = new_signature;
        }
        (ContentBlock::ToolUse { .. }, BlockDelta::Input { partial_json }) => {
            json.push_str(&partial_json);
        }
        // The steps of one block never mix kinds.
        _ => {}
    }
}

/// Returns the input of a call. The token limit may have truncated its JSON.
fn input_of(json: String) -> Map<String, Value> {
    if json.is_empty() {
        return Map::new();
    }
    match mlx_json::parse(json.as_bytes()) {
        Ok(Value::Object(input)) => input,
        _ => Map::from_iter([(UNPARSED.to_owned(), Value::String(json))]),
    }
}
