//! Chat templates: any source, any messages. Rendering ends soon, takes bounded memory and never panics.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use chat_format::text::NO_PAUSE;
use chat_format::{ChatTemplate, Message, RenderLimits, TemplateInput};
use libfuzzer_sys::fuzz_target;
use mlx_fuzz::json::Documents;
use mlx_fuzz::{halves, watch_panics};
use serde_json::{Value, json};

static MESSAGES: LazyLock<Documents> = LazyLock::new(|| {
    let call = json!({"type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, null]}}});
    let chat = json!({
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a b\nc"}]},
            {"role": "assistant", "content": "<think>x</think> yes", "tool_calls": [call]},
            {"role": "tool", "content": "3"},
        ],
        "tools": [call],
    });
    Documents::new([chat.to_string()])
});

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let (source, chat) = halves(data);
    let source = String::from_utf8_lossy(source);
    let chat: Value = serde_json::from_slice(&MESSAGES.text(chat)).unwrap_or_default();
    let special = json!({"bos_token": "<s>", "eos_token": "</s>"});
    let Ok(template) = ChatTemplate::from_source(&source, special.as_object().cloned().unwrap_or_default()) else {
        return;
    };
    let messages: Vec<Message> = serde_json::from_value(chat["messages"].clone()).unwrap_or_default();
    let input = TemplateInput {
        messages,
        tools: chat["tools"].as_array().map(|tools| tools.iter().cloned().map(Into::into).collect()),
        add_generation_prompt: chat.get("add_generation_prompt").is_none_or(|flag| flag == true),
        ..TemplateInput::default()
    };
    // Far below libFuzzer's own limits, so that a rendering that ignores these is noticed.
    let limits = RenderLimits::new(Duration::from_millis(200), 64 << 20);
    let _ = template.render_within(&input, &limits, NO_PAUSE);
});
