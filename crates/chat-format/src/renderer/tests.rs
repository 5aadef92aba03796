//! Tests that prompts only grow, with small templates that accept, reject, drop or move instructions.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::message::ToolCall;
use super::super::tool::{Tool, Tools};
use super::*;
use crate::text::{NO_PAUSE, Tokenizer};

/// Like Qwen 3.5: an instruction must be the first message.
const FIRST_ONLY: &str = "{% if tools %}[tools {{ tools | tojson }}]{% endif %}\
    {% for m in messages %}{% if m.role == 'system' and not loop.first %}\
    {{ raise_exception('System message must be at the beginning.') }}{% endif %}\
    <{{ m.role }}>{{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": \
    {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}{{ '\\n' }}\
    {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// Like Mistral: an instruction at the beginning, then alternating user and assistant messages. Calls and results are
/// not counted.
const ALTERNATING: &str = "{% if tools %}[tools {{ tools | tojson }}]{% endif %}\
    {% if messages[0].role == 'system' %}[S]{{ messages[0].content }}[/S]{% set rest = messages[1:] %}\
    {% else %}{% set rest = messages %}{% endif %}{% set ns = namespace(i=0) %}\
    {% for m in rest %}{% if m.role == 'user' or m.role == 'assistant' and not m.tool_calls %}\
    {% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
    {% set ns.i = ns.i + 1 %}{% endif %}\
    {% if m.role == 'user' %}[INST]{{ m.content }}[/INST]\
    {% elif m.tool_calls %}{% for c in m.tool_calls %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \
    \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}</s>\
    {% elif m.role == 'assistant' %}{{ m.content }}</s>\
    {% elif m.role == 'tool' %}[R]{{ m.content }}[/R]\
    {% else %}{{ raise_exception('only user, assistant and tool') }}{% endif %}{% endfor %}";

/// Like Gemma 2: no instructions at all.
const NO_SYSTEM: &str = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
    {% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}\
    {% endif %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}{% if add_generation_prompt %}<model>{% endif %}";

/// Like Llama 3: all roles at any position.
const ANYWHERE: &str = "{% if tools %}[tools {{ tools | tojson }}]{% endif %}\
    {% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\
    {% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": \
    {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|eot|>{% endfor %}\
    {% if add_generation_prompt %}<|assistant|>{% endif %}";

/// Like gpt-oss and MiniMax: only the first instruction is shown; the others are silently dropped.
const LOSES_LATER: &str = "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}\n{% endif %}\
    {% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}\n{% endif %}{% endfor %}";

/// Like the distilled R1: only the last instruction is shown, at the beginning.
const LOSES_FIRST: &str = "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}\
    {% set ns.s = m.content %}{% endif %}{% endfor %}{{ ns.s }}\n\
    {% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}\n{% endif %}{% endfor %}";

/// Like DeepSeek V3.1: all instructions are shown, at the beginning.
const MOVES: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n{% endif %}{% endfor %}\
    {% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}\n{% endif %}{% endfor %}";

const ALL: [(&str, &str); 7] = [
    ("first only", FIRST_ONLY),
    ("alternating", ALTERNATING),
    ("no system", NO_SYSTEM),
    ("anywhere", ANYWHERE),
    ("loses later", LOSES_LATER),
    ("loses first", LOSES_FIRST),
    ("moves", MOVES),
];

/// A template, and its model's tool support, if it has any.
struct Model {
    name: &'static str,
    template: ChatTemplate,
    tools: Option<ToolSupport>,
}

static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/llama-f32");
    let tokenizer = Tokenizer::load(&folder).expect("the fixture loads");
    let model = |(name, source): (&'static str, &str)| {
        let template = template(source);
        let tools = ToolSupport::detect(Some(&template), &tokenizer, Some("hermes")).ok();
        assert_eq!(tools.is_some(), source.contains("tools"), "{name}");
        Model { name, template, tools }
    };
    ALL.into_iter().map(model).collect()
});

impl Model {
    fn render(&self, input: &TemplateInput) -> Result<String> {
        let (template, tools) = (&self.template, self.tools.as_ref());
        Renderer { template, tools, limits: RenderLimits::default(), pause: NO_PAUSE }.text(input)
    }
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::from_source(source, Map::new()).expect("it compiles")
}

fn render(source: &str, input: &TemplateInput) -> Result<String> {
    Model { name: "", template: template(source), tools: None }.render(input)
}

fn of(messages: Vec<Message>) -> TemplateInput {
    TemplateInput { messages, ..TemplateInput::default() }
}

fn text_of(source: &str, messages: &[Message]) -> String {
    render(source, &of(messages.to_vec())).expect("one layout is taken")
}

#[test]
fn an_instruction_in_the_middle_stays_where_it_was_given() {
    let messages = [
        Message::system("A"),
        Message::user("B"),
        Message::system("C"),
        Message::assistant("D"),
        Message::user("E"),
    ];
    let reminder = "<system-reminder>\nC\n</system-reminder>";
    for (source, expected) in [
        (
            ANYWHERE,
            "<|system|>A<|eot|><|user|>B<|eot|><|system|>C<|eot|><|assistant|>D<|eot|><|user|>E<|eot|>"
                .into(),
        ),
        (FIRST_ONLY, format!("<system>A\n<user>B\n<user>{reminder}\n<assistant>D\n<user>E\n")),
        (ALTERNATING, format!("[S]A[/S][INST]B\n\n{reminder}[/INST]D</s>[INST]E[/INST]")),
        (NO_SYSTEM, format!("<user>A\n\nB\n\n{reminder}<end>\n<assistant>D<end>\n<user>E<end>\n")),
        (LOSES_LATER, format!("<system>A\n<user>B\n<user>{reminder}\n<assistant>D\n<user>E\n")),
        (LOSES_FIRST, format!("A\n<user>B\n<user>{reminder}\n<assistant>D\n<user>E\n")),
        (MOVES, format!("A\n<user>B\n<user>{reminder}\n<assistant>D\n<user>E\n")),
    ] {
        assert_eq!(text_of(source, &messages), expected, "{source}");
    }
}

#[test]
fn several_leading_instructions_are_one_where_only_one_is_shown() {
    let developer = Message { role: Role::Developer, ..Message::system("B") };
    let messages = [Message::system("A"), developer, Message::user("C")];
    for (source, expected) in [
        (ANYWHERE, "<|system|>A<|eot|><|system|>B<|eot|><|user|>C<|eot|>"),
        (FIRST_ONLY, "<system>A\n\nB\n<user>C\n"),
        (ALTERNATING, "[S]A\n\nB[/S][INST]C[/INST]"),
        (NO_SYSTEM, "<user>A\n\nB\n\nC<end>\n"),
        (LOSES_LATER, "<system>A\n\nB\n<user>C\n"),
        (LOSES_FIRST, "A\n\nB\n<user>C\n"),
        (MOVES, "A\nB\n<user>C\n"),
    ] {
        assert_eq!(text_of(source, &messages), expected, "{source}");
    }
}

#[test]
fn what_no_layout_cures_is_the_first_error() {
    let source = "{{ raise_exception('no ' ~ messages | length) }}";
    let messages = vec![Message::system("A"), Message::user("B"), Message::user("C")];
    let error = render(source, &of(messages)).expect_err("it raises");
    assert_eq!(error.to_string(), "chat template: no 3");
}

#[test]
fn limits_end_all_attempts() {
    let messages = vec![Message::system("A"), Message::user("B"), Message::system("C")];
    // A template that would accept another layout if it had enough time and memory for this one.
    let slow = "{% if messages[2].role == 'system' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}\
                {% endif %}taken";
    let large = "{% if messages[2].role == 'system' %}{% set x = 'abc' * 99999999 %}{% endif %}taken";
    for (source, word) in [(slow, "took longer"), (large, "memory")] {
        let template = template(source);
        let limits = RenderLimits::new(Duration::from_millis(200), 16 << 20);
        let renderer = Renderer { template: &template, tools: None, limits, pause: NO_PAUSE };
        let error = renderer.text(&of(messages.clone())).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
    let template = template(FIRST_ONLY);
    let stopped = || Err(Error::Cancelled);
    let limits = RenderLimits::default();
    let renderer = Renderer { template: &template, tools: None, limits, pause: &stopped };
    // `pause` is called after some milliseconds, and this takes longer.
    let cancelled = renderer.text(&of(vec![Message::user("x".repeat(1 << 22)); 99]));
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{:?}", cancelled.map(|text| text.len()));
}

#[test]
fn a_continued_answer_ends_the_prompt_in_any_layout() {
    let messages =
        vec![Message::user("A"), Message::system("B"), Message::assistant("C"), Message::assistant("D")];
    for (name, source) in ALL {
        let input = TemplateInput { continue_final_message: true, ..of(messages.clone()) };
        let text = render(source, &input).expect(name);
        assert!(text.ends_with('D') && text.contains('B') && text.contains('C'), "{name}: {text}");
    }
}

/// A step of an agent's conversation, as in a request.
#[derive(Debug, Clone)]
enum Step {
    Instruction(String),
    User(String),
    Answer(String),
    Call(Vec<String>),
}

fn step() -> impl Strategy<Value = Step> {
    let text = "[a-z]{1,6}( [a-z]{1,6}){0,3}";
    prop_oneof![
        text.prop_map(Step::Instruction),
        text.prop_map(Step::User),
        text.prop_map(Step::Answer),
        proptest::collection::vec(text, 1..3).prop_map(Step::Call),
    ]
}

/// Returns the content as a text, or as an equivalent list of parts.
fn content(text: &str, as_list: bool) -> Value {
    if as_list { json!([{"type": "text", "text": text}]) } else { json!(text) }
}

/// Returns the messages of some steps, and the indices of answers. The messages before an answer are the prompt of a
/// request.
fn conversation(
    head: &[String],
    steps: &[Step],
    with_tools: bool,
    as_list: bool,
) -> (Vec<Message>, Vec<usize>) {
    let mut values: Vec<Value> =
        head.iter().map(|text| json!({"role": "system", "content": content(text, as_list)})).collect();
    let mut requests = Vec::new();
    values.push(json!({"role": "user", "content": content("begin", as_list)}));
    for (place, step) in steps.iter().enumerate() {
        let is_answered = values[values.len() - 1]["role"] == "assistant";
        match step {
            // An answer follows a user message, an instruction or results.
            Step::Answer(_) | Step::Call(_) if is_answered => {}
            Step::Instruction(text) => {
                values.push(json!({"role": "developer", "content": content(text, as_list)}));
            }
            Step::User(text) => values.push(json!({"role": "user", "content": content(text, as_list)})),
            Step::Call(results) if with_tools => {
                requests.push(values.len());
                let id = |index: usize| format!("call_{place}_{index}");
                let call =
                    |index| json!({"id": id(index), "function": {"name": "add", "arguments": {"a": index}}});
                let calls: Vec<Value> = (0..results.len()).map(call).collect();
                values.push(json!({"role": "assistant", "content": null, "tool_calls": calls}));
                let result = |(index, text): (usize, &String)| json!({"role": "tool", "tool_call_id": id(index), "content": content(text, as_list)});
                values.extend(results.iter().enumerate().map(result));
            }
            Step::Answer(_) | Step::Call(_) => {
                let text = if let Step::Answer(text) = step { text } else { "none" };
                requests.push(values.len());
                values.push(json!({"role": "assistant", "content": content(text, as_list)}));
            }
        }
    }
    requests.push(values.len());
    let messages = values.into_iter().map(|value| serde_json::from_value(value).expect("a message"));
    (messages.collect(), requests)
}

fn tool(name: &str) -> Tool {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let function = json!({"name": name, "description": "Adds.", "parameters": parameters});
    Tool::read(json!({"type": "function", "function": function})).expect("valid")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_prompt_of_a_turn_begins_that_of_the_next_one(
        head in proptest::collection::vec("[a-z]{1,6}", 0..3),
        steps in proptest::collection::vec(step(), 1..10),
    ) {
        for model in MODELS.iter() {
            let (name, with_tools) = (model.name, model.tools.is_some());
            let (messages, requests) = conversation(&head, &steps, with_tools, false);
            let tools = with_tools.then(|| vec![tool("add").json]);
            let input = |messages: &[Message]| TemplateInput { tools: tools.clone(), ..of(messages.to_vec()) };
            let mut before = String::new();
            for request in requests {
                let prompt = model.render(&input(&messages[..request])).expect(name);
                prop_assert!(prompt.starts_with(&before), "{name}: {prompt:?} after {before:?}");
                for message in &messages[..request] {
                    prop_assert!(prompt.contains(&message.text()), "{name}: {message:?} in {prompt:?}");
                }
                before = prompt;
            }
            let (listed, _) = conversation(&head, &steps, with_tools, true);
            prop_assert_eq!(model.render(&input(&listed)).expect(name), before);
        }
    }

    /// A tool that is added later is shown in the result that refers to it, not at the beginning.
    #[test]
    fn a_late_tool_moves_nothing(steps in proptest::collection::vec(step(), 0..6), late in "[a-z]{1,8}_late") {
        for model in MODELS.iter().filter(|model| model.tools.is_some()) {
            let (mut messages, _) = conversation(&["A".to_owned()], &steps, true, false);
            messages.push(Message::user("go on"));
            let input = |messages: &[Message], tools: Vec<Tool>| TemplateInput {
                tools: Tools::new(tools).expect("two names").shown(),
                ..of(messages.to_vec())
            };
            let name = model.name;
            let before = model.render(&input(&messages, vec![tool("add")])).expect(name);
            let late = Tool { is_deferred: true, ..tool(&late) };
            let call = ToolCall { id: Some("late".into()), name: "add".into(), arguments: "{}".into() };
            messages.push(Message { parts: Vec::new(), tool_calls: vec![call], ..Message::assistant("") });
            let result = Message::new(Role::Tool, late.definition());
            messages.push(Message { tool_call_id: Some("late".into()), ..result });
            let after = model.render(&input(&messages, vec![late.clone(), tool("add")])).expect(name);
            prop_assert!(after.starts_with(&before), "{name}: {after:?} after {before:?}");
            prop_assert!(after[before.len()..].contains(&late.definition()), "{name}: {after:?}");
        }
    }
}
