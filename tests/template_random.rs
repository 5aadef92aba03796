//! Random chat templates: each ends as text or as an error, and never panics.

use std::time::{Duration, Instant};

use chat_format::text::NO_PAUSE;
use chat_format::{ChatTemplate, Message, RenderLimits, TemplateInput};
use proptest::prelude::*;
use serde_json::Map;

/// Operands; some are hostile.
const OPERANDS: [&str; 24] = [
    "messages",
    "messages[0].content",
    "n",
    "n.x",
    "x",
    "nothing",
    "loop",
    "m",
    "1",
    "-7",
    "2.5",
    "1e300",
    "'a<\u{e9}\u{1f680}'",
    "''",
    "none",
    "true",
    "[]",
    "{}",
    "(1, 'a')",
    "range(9)",
    "range(99999)",
    "{'a': [1, {}]}",
    "'ab' * 99999",
    "9 ** 99",
];

/// Suffixes of operands.
const SUFFIXES: [&str; 40] = [
    "|upper",
    "|length",
    "|list",
    "|join(n.x)",
    "|tojson(indent=2)",
    "|sort",
    "|unique|list",
    "|map('string')|list",
    "|map(attribute='a')",
    "|select('odd')|list",
    "|selectattr('a')",
    "|groupby('a')",
    "|batch(3, x)|list",
    "|slice(3, x)|list",
    "|replace('a', n.x)",
    "|indent(3, true)",
    "|truncate(9)",
    "|round(-400)",
    "|int",
    "|float",
    "|dictsort",
    "|items",
    "|first",
    "|sum",
    "|escape",
    "|safe",
    ".split()",
    ".split('a', 1)",
    ".format(x, a=n)",
    ".center(99)",
    ".items()",
    ".get('a', n)",
    ".a.b",
    "[0]",
    "[::-1]",
    "[-2:99:3]",
    " is defined",
    " is sameas x",
    "()",
    "(x, *n.x, **x)",
];

/// Operators between operands.
const OPERATORS: [&str; 16] =
    ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "not in", "and", "or", "if x else", ","];

/// Statements with placeholders for expressions.
const STATEMENTS: [&str; 18] = [
    "{{ # }}",
    "{% set x = # %}",
    "{% set n.x = # %}",
    "{% set n.x = [n, n.x, #] %}",
    "{% set x, y = # %}",
    "{% set x %}@{% endset %}",
    "{% if # %}@{% elif # %}@{% else %}@{% endif %}",
    "{% for x in # %}@{% endfor %}",
    "{% for x in # if # %}@{% else %}@{% endfor %}",
    "{% for x, y in # recursive %}@{{ loop(#) }}{% endfor %}",
    "{% for i in range(99999) %}@{% endfor %}",
    "{% macro m(a, b=#) %}@{{ caller() }}{% endmacro %}{{ m(#) }}",
    "{% call m(#) %}@{% endcall %}",
    "{% filter upper %}@{% endfilter %}",
    "{% with x = # %}@{% endwith %}",
    "{% break %}",
    "{%- raw -%} {{ # }} {% endraw %}",
    "{# # #}{{- # -}}{%+ if x %}",
];

fn expression() -> impl Strategy<Value = String> {
    let part = || {
        (
            prop::sample::select(&OPERANDS[..]),
            prop::collection::vec(prop::sample::select(&SUFFIXES[..]), 0..4),
        )
    };
    let more = (prop::sample::select(&OPERATORS[..]), part());
    (part(), prop::collection::vec(more, 0..3)).prop_map(|(first, rest)| {
        let written = |(operand, suffixes): (&str, Vec<&str>)| format!("({operand}){}", suffixes.concat());
        rest.into_iter()
            .fold(written(first), |text, (operator, part)| format!("{text} {operator} {}", written(part)))
    })
}

fn statement() -> impl Strategy<Value = String> {
    let parts = (prop::sample::select(&STATEMENTS[..]), prop::collection::vec(expression(), 3));
    let leaf = parts.prop_map(|(form, expressions)| {
        expressions
            .iter()
            .fold(form.to_owned(), |text, expression| text.replacen('#', expression, 1))
            .replace('#', "x")
    });
    let leaf = leaf.boxed();
    let inner = prop::collection::vec(leaf.clone(), 1..4).prop_map(|inner| inner.concat().replace('@', ""));
    (leaf, inner).prop_map(|(outer, inner)| outer.replace('@', &inner))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_random_template_ends(statements in prop::collection::vec(statement(), 1..5), cut in 0..2000usize) {
        let mut source = format!("{{% set n = namespace(x=1) %}}{}", statements.concat());
        // Every other template is truncated.
        if cut.is_multiple_of(2) {
            source.truncate(source.floor_char_boundary(cut));
        }
        let input = TemplateInput { messages: vec![Message::user("a b\n")], ..TemplateInput::default() };
        let (started, limits) = (Instant::now(), RenderLimits::new(Duration::from_millis(30), 16 << 20));
        let template = ChatTemplate::from_source(&source, Map::new());
        let outcome = template.and_then(|template| template.render_within(&input, &limits, NO_PAUSE));
        prop_assert!(started.elapsed() < Duration::from_secs(10), "{source}");
        if let Err(error) = outcome {
            // The message of a caught panic.
            let error = error.to_string();
            prop_assert!(!error.contains("it cannot be"), "{error}: {source}");
        }
    }
}
