//! A model that answers every chat like gpt-oss: reasoning on the channel `analysis`, then an answer on the channel
//! `final`.

use crate::successors::{self, Successors};

/// The reasoning of the model. With [`PRESENCE_PENALTY`], a greedy model writes this first and then [`ANSWER`].
pub const THOUGHT: &str = "Hmm";
/// The answer of the model.
pub const ANSWER: &str = "Hello";
/// The presence penalty with which a greedy model writes [`THOUGHT`] and then [`ANSWER`].
pub const PRESENCE_PENALTY: &str = "1";

const TEMPLATE: &str = "<|start|>system<|message|>Reasoning: {{ reasoning_effort|default('medium') }}<|end|>\
{%- for message in messages -%}\
<|start|>{{ message.role }}{% if message.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ message.content }}\
{%- if 'thinking' in message %}{{ raise_exception('thoughts are not repeated') if message.thinking != 'Hmm' }}{% endif -%}\
<|end|>\
{%- endfor -%}\
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}";

/// Creates the model in a temporary folder.
///
/// # Panics
/// If a file cannot be written.
pub fn model() -> tempfile::TempDir {
    successors::model(&Successors {
        template: TEMPLATE,
        special: ["<|channel|>", "<|message|>", "<|return|>", "<|start|>", "<|end|>"],
        words: &["analysis", "final", "assistant", THOUGHT, ANSWER],
        prompt_end: "<|start|>assistant",
        first: "<|channel|>",
        next: &[
            ("assistant", &[("<|channel|>", 1.0)]),
            ("<|channel|>", &[("analysis", 0.2), ("final", 0.1)]),
            ("analysis", &[("<|message|>", 1.0)]),
            ("final", &[("<|message|>", 1.0)]),
            ("<|message|>", &[(THOUGHT, 0.2), (ANSWER, 0.1)]),
            (THOUGHT, &[("<|end|>", 1.0)]),
            ("<|end|>", &[("<|start|>", 1.0)]),
            ("<|start|>", &[("assistant", 1.0)]),
            (ANSWER, &[("<|return|>", 1.0)]),
        ],
    })
}
