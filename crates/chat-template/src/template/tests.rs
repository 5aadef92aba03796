//! Tests of renderings, errors and memory limits.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::thread::NO_PAUSE;

fn render(source: &str, variables: &Value) -> Result<String, Error> {
    let variables = mlx_json::Value::from(variables.clone()).as_object().cloned().unwrap_or_default();
    let now = jiff::civil::date(2024, 7, 26).at(0, 0, 0, 0);
    let rendered =
        Template::parse("", source)?.render(&variables, Some(now), &RenderLimits::default(), NO_PAUSE);
    rendered.expect("nothing ends it")
}

#[test]
fn renders_as_transformers_does() {
    let variables =
        json!({"d": {"b": 1, "a": [true, null, 1e16, "it's \u{e9}"]}, "l": [3, 1, 2], "t": " x, y\n"});
    for (source, expected) in [
        ("  {% if true %}\n  {{ 1 }}\n  {% endif %}\n\n", "  1\n"),
        ("{{ d }}", "{'b': 1, 'a': [True, None, 1e+16, \"it's \u{e9}\"]}"),
        ("{{ d|tojson }}", "{\"b\": 1, \"a\": [true, null, 1e+16, \"it's \u{e9}\"]}"),
        ("{{ l|tojson(indent=1) }}{{ t|tojson(ensure_ascii=true) }}", "[\n 3,\n 1,\n 2\n]\" x, y\\n\""),
        ("{{ {'b': 1, 'a': {}}|tojson(separators=(',', ':'), sort_keys=true) }}", "{\"a\":{},\"b\":1}"),
        ("{{ l[::-1] }}{{ l[-2:] }}{{ [][::-1] }}{{ t[1:-1] }}", "[2, 1, 3][1, 2][]x, y"),
        ("{{ t.strip().split(', ') }}{{ t.split() }}{{ 'abc'.find('c') }}", "['x', 'y']['x,', 'y']2"),
        ("{{ l|sort(true) }}{{ l|join('-') }}{{ nothing|length }}", "[3, 2, 1]3-1-20"),
        ("{{ 'a\nb\n'|indent(2) }}|{{ none is iterable }}|{{ '0x1f'|int(0, 16) }}", "a\n  b\n|False|31"),
        ("{% for k, v in d.items() %}{% if loop.last %}{% break %}{% endif %}{{ k }}{% endfor %}", "b"),
        ("{% set n = namespace(x=0) %}{% for i in l %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", "6"),
        ("{%- generation %}{% set x = 1 %}{{ x }}{% endgeneration -%} {{ x is defined }}", "1False"),
        ("{{ strftime_now('%d %B %Y') }}", "26 July 2024"),
        ("{{ ('<a>'|safe) + '<' }}{{ ('<'|safe) ~ '&' }}{{ ['<', '&'|safe]|join }}", "<a>&lt;<&<&"),
        ("{{ dict([('a', 1)], b=+2) }}{{ nothing }}{{ 'a' ~ none }}", "{'a': 1, 'b': 2}aNone"),
    ] {
        assert_eq!(render(source, &variables).expect(source), expected, "{source}");
    }
}

#[test]
fn errors_say_what_and_where() {
    for (source, expected) in [
        ("\n{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("\n{% for x in none %}{% endfor %}", "line 2: NoneType is not iterable"),
        ("\n{{ a.b }}", "line 2: `a` is undefined"),
        ("{{ 'a' + [] }}", "line 1: tried to use + operator"),
        ("{{ [].append(1) }}", "append is not allowed"),
        ("{% if %}", "line 1: syntax error"),
        ("{{ nothing|tojson }}", "`nothing` is undefined and cannot be written as JSON"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recurses too deeply"),
    ] {
        let message = render(source, &Value::Null).expect_err(source).to_string();
        assert!(message.contains(expected), "{source}: {message}");
    }
}

#[test]
fn the_memory_of_a_rendering_is_bounded() {
    const MEMORY: usize = 16 << 20;
    for step in [
        "n.x ~ n.x",
        "n.x.replace('', n.x)",
        "(n.x|string * 99)|list",
        "[n.x, n.x]|tojson(indent=9)",
        "(n.x|string * 9).split('a')",
        "dict([(n.x, 1), (i, n.x)])",
        "[n.x] * 99999",
        "range(99999)|map('string')|sort|unique|batch(2)|list + [n.x]",
        "'%s%s' % (n.x, n.x)",
    ] {
        let step = format!("{{% set n.x = {step} %}}{{% set n.y = [n.y, n.x] %}}");
        let source = format!(
            "{{% set n = namespace(x='aab', y=0) %}}{{% for i in range(99) %}}{step}{{{{ n.x }}}}{{% endfor %}}"
        );
        let template = Template::parse("", &source).expect("it compiles");
        let limits = RenderLimits::new(Duration::from_millis(500), MEMORY);
        let variables = Map::new();
        let measured = on_thread(NO_PAUSE, |control| {
            Ok(allocation_counter::measure(|| drop(template.run(&variables, None, &limits, control))))
        });
        let measured = measured.expect("nothing ends it").expect("it ends");
        // Texts grow by doubling, and a step holds its input along with its output.
        assert!(measured.bytes_max < 3 * MEMORY as u64, "{source}: {}", measured.bytes_max);
        assert_eq!(measured.bytes_current, 0, "{source}: something is left");
    }
}
