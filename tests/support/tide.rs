//! A model that calls the tool `tide` and reports whether the next prompt has its result.

use crate::successors::{self, Successors};

/// A template that ends the prompt with one token if the last message is the command's result, and with another one for other results.
/// The answer thus shows the contents of the prompt.
const TEMPLATE: &str = "\
{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{\"name\": {{ call.function.name | tojson }}, \"arguments\": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}
{%- if messages[-1].role != 'tool' or 'again' in messages[0].content %}<|im_start|>assistant
{% elif 'high tide at <Brest; touch broken>' in messages[-1].content %}<|pad|>
{%- else %}<|bos|>{% endif %}
{%- endif %}";

const CALL: [&str; 3] = [
    "<tool_call>\n{\"name\": \"tide\", ",
    "\"arguments\": {\"place\": \"Brest; touch broken\"}}",
    "\n</tool_call>",
];

/// Returns a model that calls `tide` and then reports whether it got the result.
///
/// # Panics
/// If a file cannot be written.
pub fn model() -> tempfile::TempDir {
    let special = ["<|pad|>", "<|bos|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let to = |next: &'static str| [(next, 4.0)];
    let (second, third, end) = (to(CALL[1]), to(CALL[2]), to("<|endoftext|>"));
    let (seen, unseen) = (to("I have seen it."), to("I know nothing."));
    successors::model(&Successors {
        template: TEMPLATE,
        special,
        words: &[CALL[0], CALL[1], CALL[2], "I have seen it.", "I know nothing."],
        prompt_end: "<|im_start|>assistant\n",
        first: CALL[0],
        next: &[
            (CALL[0], &second),
            (CALL[1], &third),
            (CALL[2], &end),
            ("<|pad|>", &seen),
            ("<|bos|>", &unseen),
            ("I have seen it.", &end),
            ("I know nothing.", &end),
        ],
    })
}
