//! The memory budget of a rendering. Templates are untrusted. Fuel limits instructions, but thirty doublings of a text fill any
//! memory, so the bytes of growing texts and lists are counted, too.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::numbers::integer;
use super::python::type_error;

/// The filter that counts the result of an operator.
pub(super) const MADE: &str = "__made";
/// The filter that multiplies.
pub(super) const PRODUCT: &str = "__product";

/// The bytes that all operators, filters and prints of one rendering may produce. A long chat needs far less.
const LIMIT: usize = 1 << 30;

/// The bytes produced so far.
#[derive(Default)]
struct Made(usize);

/// Counts bytes that are about to be produced.
pub(super) fn spend(state: &mut State, bytes: usize) -> Result<(), Error> {
    let made = state.get_or_insert_extension(Made::default());
    made.0 = made.0.saturating_add(bytes);
    if made.0 > LIMIT {
        let message = format!("the template produces over {LIMIT} bytes of text and lists");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    Ok(())
}

/// The bytes of a text or list, without nested values.
pub(super) fn size(value: &Value) -> usize {
    match value.kind() {
        ValueKind::String => value.as_str().map_or(0, str::len),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            value.len().unwrap_or(0).saturating_mul(size_of::<Value>())
        }
        _ => 0,
    }
}

/// Counts `value`, the result of an operator.
pub(super) fn made(state: &mut State, value: Value) -> Result<Value, Error> {
    spend(state, size(&value))?;
    Ok(value)
}

/// `left * right`: a product of numbers, or a repeated text or list.
pub(super) fn product(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    let repeats =
        |value: &Value| matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable);
    let (value, times) = match (repeats(&left), repeats(&right)) {
        (true, false) => (left, right),
        (false, true) => (right, left),
        _ => return multiplied(&left, &right),
    };
    let times = usize::try_from(times)
        .map_err(|_| type_error("texts and lists can only be multiplied by integers"))?;
    spend(state, size(&value).saturating_mul(times))?;
    if let Some(text) = value.as_str() {
        return Ok(Value::from(text.repeat(times)));
    }
    let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
    let all = std::iter::repeat_n(items, times).flatten().collect::<Vec<_>>();
    Ok(if value.is_tuple() { Value::from(Tuple::from(all)) } else { Value::from(all) })
}

fn multiplied(left: &Value, right: &Value) -> Result<Value, Error> {
    let refused = || {
        let (left, right) = (left.kind(), right.kind());
        type_error(format!("tried to use * operator on unsupported types {left} and {right}"))
    };
    if let (Some(left), Some(right)) = (integer(left), integer(right)) {
        return left.checked_mul(right).map(super::numbers::number).ok_or_else(refused);
    }
    let number = |value: &Value| match integer(value) {
        Some(integer_value) => Some(integer_value as f64),
        None => f64::try_from(value.clone()).ok(),
    };
    match (number(left), number(right)) {
        (Some(left), Some(right)) => Ok(Value::from(left * right)),
        _ => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use crate::text::{ChatTemplate, TemplateInput};

    fn render(source: &str) -> crate::Result<String> {
        ChatTemplate::from_source(source, Map::new())?.render(&TemplateInput::default())
    }

    /// Each of these would take gigabytes, most of them more than any machine has.
    #[test]
    fn unbounded_growth_is_refused() {
        let grown = |start: &str, step: &str| {
            let step = format!("{{% for i in range(60) %}}{{% set n.x = {step} %}}{{% endfor %}}");
            format!("{{% set n = namespace(x={start}) %}}{step}")
        };
        let large = |source: &str| format!("{{% set x = 'x' * 1000000 %}}{{{{ {source} }}}}");
        let macros = "{% macro f(a) %}{{ a }}{{ a }}{% endmacro %}{{ ";
        let body = "x".repeat(10_000);
        for source in [
            grown("'x'", "n.x ~ n.x"),
            grown("'x'", "'' if i == 99 else [n.x + n.x][0]"),
            grown("[1]", "n.x + n.x"),
            grown("'x'", "n.x * 8"),
            grown("'x'", "n.x ~ n.x is string ~ n.x"),
            format!("{macros}{}'x'{} }}}}", "f(".repeat(40), ")".repeat(40)),
            "{{ [0] * 100000000 }}".into(),
            "{{ 100000000 * (0, 1) }}".into(),
            "{{ [1]|batch(1000000000, 0) }}".into(),
            "{{ []|slice(1000000000) }}".into(),
            large("x|replace('', x)"),
            large("x.replace('', x)"),
            large("range(100000)|join(x)"),
            large("x.join(['a'] * 100000)"),
            large("('\n' * 100000)|indent(x, blank=true)"),
            large("([x] * 10000)|tojson"),
            format!(
                "{{% set x %}}{{% for a in range(1000) %}}{{% for b in range(1000) if b %}}{body}\
                 {{% endfor %}}{{% endfor %}}{{% endset %}}"
            ),
        ] {
            let message = render(&source).expect_err(&source[..source.len().min(80)]).to_string();
            let refused =
                message.contains("the template produces over") || message.contains("too long for JSON");
            assert!(refused, "{message}");
        }
        let list = render("{% set x = 'x' * 1000000 %}{{ [x] * 10000 }}").expect("the output is cut off");
        assert!(list.len() < 1 << 26 && list.ends_with("...]"));
    }

    #[test]
    fn counted_operators_keep_their_results() {
        for (source, expected) in [
            ("{{ 2 - 1 + 3 }} {{ 7 - 2 * 3 % 4 }} {{ 2 * 3 ** 2 // 4 / 2 }}", "4 5 2.0"),
            ("{{ 'a' ~ 1 + 2 ~ 'b' }} {{ -1 ~ 2 }} {{ 3 * -2 }} {{ 1 ~ -2 }}", "a12b -12 -6 1-2"),
            (
                "{{ 'ab' * 2 }} {{ 2 * 'ab' }} {{ [1] * 2 + [3] }} {{ (1,) * 2 }}",
                "abab abab [1, 1, 3] (1, 1)",
            ),
            ("{{ 1.5 * 2 }} {{ 3 * true }} {{ 2 * 3 * 'x' ~ 'y' * 2 }}", "3.0 3 xxxxxxyy"),
            ("{{ 'a' ~ 1 is string ~ 'b' }} {{ 1 ~ 1 is not none }}", "aFalseb 1True"),
            ("{{ 'a' ~ 'b' if 1 + 1 == 2 and not 3 - 2 > 1 else 'c' ~ 'd' }}", "ab"),
            ("{{ {'a': 'b' ~ 'c'}['a'][1 - 1:1 + 1] }} {{ 'x' ~ [1, 2 + 3][1]|string|length }}", "bc x1"),
            ("{% for x in [1] + [2] if x + 1 > 2 %}{{ x ~ '!' }}{% endfor %}", "2!"),
            (
                "{% set x, y = 1 + 1, 2 * 2 %}{% if x + y == 6 %}{{ range(x * y)|join('+' ~ '-') }}{% endif %}",
                "0+-1+-2+-3+-4+-5+-6+-7",
            ),
            (
                "{%- macro m(a='b' ~ 'c', in_=1 * 2) -%}{{ a ~ in_ }}{%- endmacro -%}{{ m(*['x' + 'y']) ~ m() }}",
                "xy2bc2",
            ),
        ] {
            assert_eq!(render(source).expect(source), expected, "{source}");
        }
    }

    #[test]
    fn an_invalid_product_is_named() {
        let message = render("\n{{ {} * 2 }}").expect_err("a mapping cannot be multiplied").to_string();
        assert!(message.contains("line 2: invalid operation: tried to use * operator"), "{message}");
        assert!(render("{{ 'a' * 1.5 }}").is_err() && render("{{ [1] * [2] }}").is_err());
    }
}
