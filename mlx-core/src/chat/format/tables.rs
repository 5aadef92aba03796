//! The spellings of each family, as data. A new family is a new row.

use serde_json::Value;

use Setting::{Flag, Tokens, Word};

/// The tags around thoughts.
pub(super) struct ThoughtRow {
    pub(super) open: &'static str,
    /// A word after the opening tag.
    pub(super) label: &'static str,
    pub(super) close: &'static str,
    /// Text of a template that uses them.
    pub(super) sign: &'static str,
}

const fn tags(open: &'static str, close: &'static str) -> ThoughtRow {
    ThoughtRow { open, label: "", close, sign: close }
}

/// The first row that a template mentions is taken, so spellings that other templates mention in their prose come last.
pub(super) const THOUGHT_TAGS: [ThoughtRow; 11] = [
    // Gemma 4
    ThoughtRow { label: "thought", ..tags("<|channel>", "<channel|>") },
    // Kimi K3
    ThoughtRow { sign: "open_tag('think')", ..tags("<|open|>think<|sep|>", "<|close|>think<|sep|>") },
    // Command R7B, Command A Reasoning
    tags("<|START_THINKING|>", "<|END_THINKING|>"),
    // Apertus
    tags("<|inner_prefix|>", "<|inner_suffix|>"),
    // Magistral, Ministral 3
    tags("[THINK]", "[/THINK]"),
    // Seed-OSS
    tags("<seed:think>", "</seed:think>"),
    // MiniMax M3
    tags("<mm:think>", "</mm:think>"),
    // Qwen3, DeepSeek, GLM, SmolLM3, Nemotron and most others
    tags("<think>", "</think>"),
    tags("<thinking>", "</thinking>"),
    tags("<thought>", "</thought>"),
    tags("<reasoning>", "</reasoning>"),
];

/// The special tokens of gpt-oss' format.
pub(super) struct Harmony {
    pub(super) start: &'static str,
    pub(super) channel: &'static str,
    pub(super) constrain: &'static str,
    pub(super) message: &'static str,
    pub(super) ends: [&'static str; 3],
}

pub(super) const HARMONY: Harmony = Harmony {
    start: "<|start|>",
    channel: "<|channel|>",
    constrain: "<|constrain|>",
    message: "<|message|>",
    ends: ["<|end|>", "<|call|>", "<|return|>"],
};

/// A variable of chat templates that turns thinking on and off.
pub(super) struct Switch {
    pub(super) variable: &'static str,
    /// Text of a template that has the variable.
    pub(super) sign: &'static str,
    pub(super) on: Setting,
    pub(super) off: Setting,
}

/// A value of such a variable.
#[derive(Debug, Clone, Copy)]
pub(super) enum Setting {
    Flag(bool),
    Tokens(i64),
    Word(&'static str),
}

impl From<Setting> for Value {
    fn from(setting: Setting) -> Self {
        match setting {
            Setting::Flag(flag) => flag.into(),
            Setting::Tokens(number) => number.into(),
            Setting::Word(word) => word.into(),
        }
    }
}

/// The first row that a template mentions is its switch.
pub(super) const SWITCHES: [Switch; 6] = [
    // Qwen3, GLM, SmolLM3, Gemma 4 and most others
    Switch { variable: "enable_thinking", sign: "enable_thinking", on: Flag(true), off: Flag(false) },
    // MiniMax M3
    Switch { variable: "thinking_mode", sign: "thinking_mode", on: Word("enabled"), off: Word("disabled") },
    // Seed-OSS: the budget is in tokens, and -1 is no limit
    Switch { variable: "thinking_budget", sign: "thinking_budget", on: Tokens(-1), off: Tokens(0) },
    // gpt-oss always thinks, but not always much
    Switch { variable: "reasoning_effort", sign: "reasoning_effort", on: Word("medium"), off: Word("low") },
    // Granite 3, DeepSeek V3.1, Kimi K3
    Switch { variable: "thinking", sign: "if thinking", on: Flag(true), off: Flag(false) },
    Switch { variable: "thinking", sign: "if not thinking", on: Flag(true), off: Flag(false) },
];

/// The variable of templates that know several efforts.
pub(super) const EFFORT: &str = "reasoning_effort";

/// Tokens that end a turn, and those that begin the next one, where models end.
pub(super) const TURN_ENDS: [&str; 25] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "</s>",
    "<eos>",
    "<end_of_turn>",
    "<start_function_response>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<|user|>",
    "<|observation|>",
    "<seed:eos>",
    "[e~[",
    "<|role_end|>",
    "<|message_sep|>",
    "<end_of_sentence>",
    "<|end_of_msg|>",
    "</assistant>",
    "<sep>",
    "<|calls|>",
    "<SPECIAL_12>",
];
