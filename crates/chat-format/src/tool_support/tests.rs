//! Templates in the style of several families, and templates of models that cannot call tools.

use std::path::Path;

use super::*;

const TOOLS: &str = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}";
const CALLS: &str = "{% for c in m.tool_calls or [] %}{% set f = c.function %}";

/// Returns a template that writes calls in this form.
fn template(call: &str) -> ChatTemplate {
    let source = format!(
        "{TOOLS}{{% for m in messages %}}<|{{{{ m.role }}}}|>{{{{ m.content }}}}{call}<|end_of_turn|>{{% endfor %}}\
         {{% if add_generation_prompt %}}<|assistant|>{{% endif %}}"
    );
    ChatTemplate::from_source(&source, serde_json::Map::new()).expect("it compiles")
}

fn detect(template: &ChatTemplate, named: Option<&str>) -> Result<ToolSupport, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/llama-f32");
    let tokenizer = Tokenizer::load(&folder).expect("the fixture loads");
    ToolSupport::detect(Some(template), &tokenizer, named)
}

#[test]
fn the_format_that_reads_what_the_template_writes_is_the_models() {
    let tags = "{% for k, v in f.arguments.items() %}";
    for (call, name) in [
        (
            "\n<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}\n</tool_call>".to_owned(),
            "hermes",
        ),
        (
            format!("<tool_call>\n<function={{{{ f.name }}}}>\n{tags}<parameter={{{{ k }}}}>\n{{{{ v }}}}\n</parameter>\n{{% endfor %}}</function>\n</tool_call>"),
            "qwen3-coder",
        ),
        (
            format!("<tool_call>{{{{ f.name }}}}{tags}<arg_key>{{{{ k }}}}</arg_key><arg_value>{{{{ v }}}}</arg_value>{{% endfor %}}</tool_call>"),
            "glm-4.7",
        ),
        ("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}".to_owned(), "ministral"),
        (
            format!("<|tool_call>call:{{{{ f.name + '{{' }}}}{tags}{{% if not loop.first %}},{{% endif %}}{{{{ k }}}}:{{% if v is string %}}<|\"|>{{{{ v }}}}<|\"|>{{% else %}}{{{{ v }}}}{{% endif %}}{{% endfor %}}{{{{ '}}' }}}}<tool_call|>"),
            "gemma-4",
        ),
    ] {
        let support = detect(&template(&format!("{CALLS}{call}{{% endfor %}}")), None).expect(name);
        assert_eq!((support.calls().name(), support.writes_calls, support.is_parallel), (name, true, true));
    }
}

#[test]
fn a_template_may_take_one_call_a_turn() {
    let call = "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}\
                {% set f = m.tool_calls[0].function %}{\"name\": \"{{ f.name }}\", \"parameters\": {{ f.arguments | tojson }}}{% endif %}";
    let support = detect(&template(call), None).expect("it writes one call");
    assert_eq!((support.calls().name(), support.is_parallel), ("llama-3", false));
}

#[test]
fn calls_are_written_into_the_content_where_the_template_writes_none() {
    let lfm2 = template("{# List of tools: [ #}");
    let support = detect(&lfm2, None).expect("it has a sign");
    assert_eq!((support.calls().name(), support.writes_calls), ("lfm2", false));
    let support = detect(&template(""), Some("hermes")).expect("the format was named");
    assert_eq!((support.calls().name(), support.writes_calls), ("hermes", false));
}

#[test]
fn a_model_that_cannot_call_tools_says_why() {
    let no_tools =
        ChatTemplate::from_source("{{ messages[0].content }}", serde_json::Map::new()).expect("it compiles");
    let unknown = template(&format!("{CALLS}CALL {{{{ f.name }}}}{{% endfor %}}"));
    let raises =
        ChatTemplate::from_source("{{ raise_exception('no tools') if tools }}", serde_json::Map::new())
            .expect("it compiles");
    for (template, named, word) in [
        (&no_tools, None, "does not support tools"),
        (&unknown, None, "in an unknown format"),
        (&raises, None, "no tools"),
        (&unknown, Some("morse"), "hermes"),
    ] {
        let why = detect(template, named).expect_err(word);
        assert!(why.contains(word), "{why}");
    }
}

/// A template in which each message has a recipient, as in Muse Glimmer's.
const RECIPIENTS: &str = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}\
    {% if m.reasoning_content %}<|start|>assistant to=self<|message|>{{ m.reasoning_content }}<|eom|>{% endif %}\
    {% for c in m.tool_calls or [] %}{% set f = c.function %}<|start|>assistant to={{ f.name }}<|message|><atem:function_calls>\n\
    <atem:invoke name=\"{{ f.name }}\">\n\
    {% for k, v in f.arguments.items() %}<atem:parameter name=\"{{ k }}\">{{ v }}</atem:parameter>\n{% endfor %}\
    </atem:invoke>\n</atem:function_calls>{{ '<|eot|>' if loop.last else '<|eom|>' }}{% else %}\
    <|start|>{{ m.role }}{{ ' to=user' if m.role == 'assistant' }}<|message|>{{ m.content }}<|eot|>{% endfor %}{% endfor %}\
    {% if add_generation_prompt %}<|start|>assistant{% endif %}";

#[test]
fn calls_may_be_messages_to_their_tools() {
    let template = ChatTemplate::from_source(RECIPIENTS, serde_json::Map::new()).expect("it compiles");
    let support = detect(&template, None).expect("it writes calls");
    assert_eq!(
        (support.calls().name(), support.writes_calls, support.is_parallel),
        ("muse-glimmer", true, true)
    );
    let format = OutputFormat::spelled(&template);
    assert_eq!((format.calls_on_channels(), format.has_thoughts()), (Some("muse-glimmer"), true));
}

#[test]
fn thoughts_are_found_where_a_template_names_either_tag() {
    for (source, is_found) in [
        ("{{ 'Here are my reasoning steps:\n' }}{# [BEGIN FINAL RESPONSE] #}", true),
        ("<|begin|>assistant<|think|>", true),
        ("{% if add_generation_prompt %}<think>{% endif %}", true),
        ("{{ messages }}", false),
    ] {
        let template = ChatTemplate::from_source(source, serde_json::Map::new()).expect("it compiles");
        assert_eq!(OutputFormat::spelled(&template).has_thoughts(), is_found, "{source}");
    }
}
