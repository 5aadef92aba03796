//! The markers of each family, as data. To support a new family, add a row.

use mlx_json::Value;

use Setting::{Flag, Tokens, Word};

/// The markers of thoughts and answers.
pub(super) struct ThoughtRow {
    pub(super) open: &'static str,
    /// A word after the opening tag.
    pub(super) label: &'static str,
    pub(super) close: &'static str,
    /// A text that identifies templates with these markers.
    pub(super) sign: &'static str,
    /// Markers around the answer that are removed.
    pub(super) silent: &'static [&'static str],
}

const fn tags(open: &'static str, close: &'static str) -> ThoughtRow {
    ThoughtRow { open, label: "", close, sign: close, silent: &[] }
}

/// The first row that a template mentions is used, so markers that other templates mention in prose come last.
pub(super) const THOUGHT_TAGS: [ThoughtRow; 16] = [
    // Gemma 4
    ThoughtRow { label: "thought", ..tags("<|channel>", "<channel|>") },
    // Solar Open
    ThoughtRow {
        sign: "assistant<|think|>",
        silent: &["<|begin|>assistant", "<|content|>", "<|tool_calls|>", "<|calls|>"],
        ..tags("<|think|>", "<|end|>")
    },
    // Kimi K3
    ThoughtRow {
        sign: "open_tag('think')",
        silent: &[
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ],
        ..tags("<|open|>think<|sep|>", "<|close|>think<|sep|>")
    },
    // Command R7B, Command A Reasoning
    ThoughtRow {
        silent: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        ..tags("<|START_THINKING|>", "<|END_THINKING|>")
    },
    // Apertus
    tags("<|inner_prefix|>", "<|inner_suffix|>"),
    // Magistral, Ministral 3
    tags("[THINK]", "[/THINK]"),
    // Apriel
    ThoughtRow {
        silent: &["[END FINAL RESPONSE]"],
        ..tags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")
    },
    // Seed-OSS
    tags("<seed:think>", "</seed:think>"),
    // MiniMax M3
    tags("<mm:think>", "</mm:think>"),
    // Hunyuan 3 and 4. Their template concatenates the tags from parts.
    ThoughtRow { sign: "':opensource'", ..tags("<think:opensource>", "</think:opensource>") },
    // LongCat
    tags("<longcat_think>", "</longcat_think>"),
    // Qwen3, DeepSeek, GLM, SmolLM3, Nemotron and most others
    tags("<think>", "</think>"),
    tags("<thinking>", "</thinking>"),
    tags("<thought>", "</thought>"),
    tags("<reasoning>", "</reasoning>"),
    // Templates that open a thought and expect the model to close it
    ThoughtRow { sign: "<think>", ..tags("<think>", "</think>") },
];

/// The markers of messages with a channel or a recipient in their header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChannelRow {
    /// The format of tool calls.
    pub(super) calls: &'static str,
    /// The call format inside a message to a tool, if the message contains more than the arguments.
    pub(super) body: Option<&'static str>,
    /// Texts that identify templates with these markers.
    pub(super) signs: &'static [&'static str],
    pub(super) start: &'static str,
    pub(super) channel: Option<&'static str>,
    pub(super) constrain: Option<&'static str>,
    pub(super) message: &'static str,
    /// The ends of a message. The first one ends a thought.
    pub(super) ends: &'static [&'static str],
    /// The header of a thought, after the role.
    pub(super) thought: &'static str,
    /// The header of the answer, after the role.
    pub(super) answer: &'static str,
}

pub(super) const CHANNEL_ROWS: [ChannelRow; 2] = [
    // gpt-oss
    ChannelRow {
        calls: "gpt-oss",
        body: None,
        signs: &["<|channel|>", "<|message|>"],
        start: "<|start|>",
        channel: Some("<|channel|>"),
        constrain: Some("<|constrain|>"),
        message: "<|message|>",
        ends: &["<|end|>", "<|call|>", "<|return|>"],
        thought: "<|channel|>analysis",
        answer: "<|channel|>final",
    },
    // Muse Glimmer
    ChannelRow {
        calls: "muse-glimmer",
        body: Some("atem"),
        signs: &["to=self<|message|>"],
        start: "<|start|>",
        channel: None,
        constrain: None,
        message: "<|message|>",
        ends: &["<|eom|>", "<|eot|>", "<|end_of_text|>"],
        thought: " to=self",
        answer: " to=user",
    },
];

/// A template variable that turns thinking on and off.
pub(super) struct Switch {
    pub(super) variable: &'static str,
    /// A text that identifies templates with the variable.
    pub(super) sign: &'static str,
    pub(super) on: Setting,
    pub(super) off: Setting,
}

/// A value of a switch.
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
pub(super) const SWITCHES: [Switch; 8] = [
    // Qwen3, GLM, SmolLM3, Gemma 4 and most others
    Switch { variable: "enable_thinking", sign: "enable_thinking", on: Flag(true), off: Flag(false) },
    // MiniMax M3
    Switch { variable: "thinking_mode", sign: "thinking_mode", on: Word("enabled"), off: Word("disabled") },
    // Seed-OSS: the budget is in tokens; -1 means unlimited
    Switch { variable: "thinking_budget", sign: "thinking_budget", on: Tokens(-1), off: Tokens(0) },
    // Hunyuan 3 and 4
    Switch { variable: "reasoning_effort", sign: "'no_think'", on: Word("high"), off: Word("no_think") },
    // gpt-oss and Muse Glimmer always think; "off" only reduces it
    Switch { variable: "reasoning_strength", sign: "reasoning_strength", on: Word("high"), off: Word("low") },
    Switch { variable: "reasoning_effort", sign: "reasoning_effort", on: Word("medium"), off: Word("low") },
    // Granite 3, DeepSeek V3.1, Kimi K3
    Switch { variable: "thinking", sign: "if thinking", on: Flag(true), off: Flag(false) },
    Switch { variable: "thinking", sign: "if not thinking", on: Flag(true), off: Flag(false) },
];

/// Template variables that set the reasoning effort.
pub(super) const EFFORTS: [&str; 3] = ["reasoning_effort", "reasoning_strength", "thinking_effort"];

/// Tokens that end a turn or begin the next one, at which models stop.
pub(super) const TURN_ENDS: [&str; 30] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eot|>",
    "<|eom|>",
    "<|end|>",
    "[|endofturn|]",
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
    "<｜hy_eos:opensource｜>",
];
