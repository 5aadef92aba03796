//! Hostile chat templates: each ends as text or as an error, within its limits of time and memory, and the process survives.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use chat_format::text::{NO_PAUSE, Pause};
use chat_format::{ChatTemplate, Error, RenderLimits, TemplateInput};
use serde_json::Map;

/// The limits of the renderings in this file. The product's limits are larger.
const TIME: Duration = Duration::from_millis(100);
const MEMORY: usize = 32 << 20;

/// The time that a rendering may exceed its limit, for a last step and for dropping its values. It needs milliseconds.
const SLACK: Duration = Duration::from_secs(1);
/// Attempts per rendering. On a busy machine a test may wait seconds for a processor; a rendering without a limit is slow in every attempt.
const ATTEMPTS: usize = 6;

/// Fails if `render` takes too long in every attempt.
fn assert_in_time(name: &str, limit: Duration, render: impl Fn()) {
    let attempt = || {
        let started = Instant::now();
        render();
        started.elapsed()
    };
    let mut took = Vec::new();
    while took.last().is_none_or(|last| *last >= limit) {
        assert!(took.len() < ATTEMPTS, "{name} may take {limit:?}, and took {took:?}");
        took.push(attempt());
    }
}

/// A name, the code before a loop, and the body of the loop.
type Bomb = (&'static str, &'static str, &'static str);

/// Values with ever more levels of nesting.
const DEEP: [Bomb; 30] = [
    ("list", "{% set n = namespace(x=[]) %}", "{% set n.x = [n.x] %}"),
    ("list, many", "{% set n = namespace(x=[]) %}", "{% set n.x = [[[[[[[[[[n.x]]]]]]]]]] %}"),
    ("tuple", "{% set n = namespace(x=()) %}", "{% set n.x = (n.x,) %}"),
    ("mapping", "{% set n = namespace(x={}) %}", "{% set n.x = {'a': n.x} %}"),
    ("dict()", "{% set n = namespace(x={}) %}", "{% set n.x = dict(a=n.x) %}"),
    ("dict() of pairs", "{% set n = namespace(x={}) %}", "{% set n.x = dict([('a', n.x)]) %}"),
    ("namespace", "{% set n = namespace(x=1) %}", "{% set n.x = namespace(x=n.x) %}"),
    ("namespace in a list", "{% set n = namespace(x=1) %}", "{% set n.x = [namespace(x=n.x)] %}"),
    ("itself", "{% set n = namespace(x=1) %}", "{% set n.x = [n, n.x] %}"),
    ("items()", "{% set n = namespace(x={}) %}", "{% set n.x = {'a': n.x.items()} %}"),
    ("items", "{% set n = namespace(x={}) %}", "{% set n.x = {'a': n.x|items} %}"),
    ("values()", "{% set n = namespace(x={}) %}", "{% set n.x = {'a': n.x.values()} %}"),
    ("dictsort", "{% set n = namespace(x={}) %}", "{% set n.x = {'a': n.x|dictsort} %}"),
    ("map", "{% set n = namespace(x=[1]) %}", "{% set n.x = [n.x]|map('list') %}"),
    ("select", "{% set n = namespace(x=[1]) %}", "{% set n.x = [n.x]|select %}"),
    ("batch", "{% set n = namespace(x=[1]) %}", "{% set n.x = n.x|batch(2, n.x) %}"),
    ("slice", "{% set n = namespace(x=[1]) %}", "{% set n.x = n.x|slice(2, n.x)|list %}"),
    ("groupby", "{% set n = namespace(x=[{'a': 1}]) %}", "{% set n.x = [{'a': 1, 'b': n.x}]|groupby('a') %}"),
    ("reverse", "{% set n = namespace(x=[1]) %}", "{% set n.x = [n.x]|reverse %}"),
    ("sort", "{% set n = namespace(x=[1]) %}", "{% set n.x = [n.x]|sort %}"),
    ("unique", "{% set n = namespace(x='a') %}", "{% set n.x = [(n.x,)]|unique|list %}"),
    ("slices", "{% set n = namespace(x=[1]) %}", "{% set n.x = [n.x][::-1] %}"),
    ("concatenation", "{% set n = namespace(x=[1]) %}", "{% set n.x = [n.x] + [1] %}"),
    ("product", "{% set n = namespace(x=[1]) %}", "{% set n.x = [n.x] * 2 %}"),
    ("cycler", "{% set n = namespace(x=1) %}", "{% set n.x = cycler(n.x) %}"),
    ("joiner", "{% set n = namespace(x=1) %}", "{% set n.x = joiner(n.x) %}"),
    ("loop", "{% set n = namespace(x=1) %}", "{% for y in [n.x] %}{% set n.x = loop %}{% endfor %}"),
    ("method", "{% set n = namespace(x='a') %}", "{% set n.x = {'a': n.x}.get %}"),
    (
        "macro",
        "{% set n = namespace(x=1) %}",
        "{% set p = n.x %}{% macro m() %}{{ p }}{% endmacro %}{% set n.x = m %}",
    ),
    (
        "arguments",
        "{% set n = namespace(x=1) %}{% macro m() %}{% set n.x = [varargs, kwargs] %}{% endmacro %}",
        "{% set z = m(n.x, a=n.x) %}",
    ),
];

/// Growing texts and lists.
const GROWING: [Bomb; 27] = [
    ("~", "{% set n = namespace(x='ab') %}", "{% set n.x = n.x ~ n.x %}"),
    ("+", "{% set n = namespace(x='ab') %}", "{% set n.x = n.x + n.x %}"),
    ("+ of lists", "{% set n = namespace(x=[1]) %}", "{% set n.x = n.x + n.x %}"),
    ("*", "{% set n = namespace(x='ab') %}", "{% set n.x = n.x * 99 %}"),
    ("* of lists", "{% set n = namespace(x=[1]) %}", "{% set n.x = n.x * 99 %}"),
    ("%", "{% set n = namespace(x='ab') %}", "{% set n.x = '%s%s' % (n.x, n.x) %}"),
    ("format", "{% set n = namespace(x='ab') %}", "{% set n.x = '%s%s'|format(n.x, n.x) %}"),
    ("format()", "{% set n = namespace(x='ab') %}", "{% set n.x = '{0}{0}'.format(n.x) %}"),
    ("replace", "{% set n = namespace(x='ab') %}", "{% set n.x = n.x|replace('a', n.x) %}"),
    ("replace()", "{% set n = namespace(x='ab') %}", "{% set n.x = n.x.replace('', n.x) %}"),
    ("join", "{% set n = namespace(x='ab') %}", "{% set n.x = [n.x, n.x]|join(n.x) %}"),
    ("join()", "{% set n = namespace(x='ab') %}", "{% set n.x = n.x.join([n.x, n.x]) %}"),
    ("indent", "{% set n = namespace(x='a\n') %}", "{% set n.x = (n.x * 2)|indent(n.x|length) %}"),
    ("center", "{% set n = namespace(x='ab') %}", "{% set n.x = n.x|center(n.x|length * 9) %}"),
    ("ljust", "{% set n = namespace(x='ab') %}", "{% set n.x = n.x.ljust(n.x|length * 9) %}"),
    ("zfill", "{% set n = namespace(x='ab') %}", "{% set n.x = n.x.zfill(n.x|length * 9) %}"),
    ("tojson", "{% set n = namespace(x='\"') %}", "{% set n.x = n.x|tojson %}"),
    (
        "tojson indent",
        "{% set n = namespace(x=[1]) %}",
        "{% set n.x = [n.x, n.x] %}{{ n.x|tojson(indent=99) }}",
    ),
    ("repr", "{% set n = namespace(x='\\\\') %}", "{% set n.x = [n.x, n.x]|string %}"),
    ("print", "{% set n = namespace(x=[1]) %}", "{% set n.x = [n.x, n.x] %}{{ n.x }}"),
    ("escape", "{% set n = namespace(x='&') %}", "{% set n.x = (n.x|string ~ '')|escape|forceescape %}"),
    ("urlencode", "{% set n = namespace(x='%') %}", "{% set n.x = n.x|urlencode %}"),
    ("split", "{% set n = namespace(x='a,') %}", "{% set n.x = n.x * 3 %}{% set y = n.x.split(',') %}"),
    ("list", "{% set n = namespace(x='a,') %}", "{% set n.x = n.x * 3 %}{% set y = n.x|list %}"),
    (
        "set block",
        "{% set n = namespace(x='ab') %}",
        "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}",
    ),
    (
        "macro",
        "{% set n = namespace(x='ab') %}{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}",
        "{% set n.x = m(n.x) %}",
    ),
    ("output", "{% set x = 'a' * 9999 %}", "{{ x }}"),
];

/// Single steps with much work, repeated. `s` is a text of 2 MB, `l` a list of 100 000 numbers, `w` a list of words.
const WORK: [&str; 52] = [
    "s|upper",
    "s|lower",
    "s|title",
    "s|capitalize",
    "s|length",
    "s|trim",
    "s|wordcount",
    "s|reverse",
    "s|list",
    "s|int",
    "s|float",
    "s|string|length",
    "s|replace('b', 'c')",
    "s|indent",
    "s|truncate(9)",
    "s|escape",
    "s|urlencode",
    "s|tojson",
    "s|center(3000000)",
    "s.strip()",
    "s.strip('a')",
    "s.rstrip('ab')",
    "s.split('b')",
    "s.split()",
    "s.splitlines()",
    "s.find('b')",
    "s.count('a')",
    "s.index('a', 1999999)",
    "s.startswith(s)",
    "s.upper()",
    "s.swapcase()",
    "s.isalpha()",
    "s.title()",
    "s.partition('b')",
    "s.removeprefix(s)",
    "s[::-1]",
    "s[1999999]",
    "s == s ~ 'b'",
    "s < s ~ 'b'",
    "'b' in s",
    "s is upper",
    "s ~ 'b'",
    "s + 'b'",
    "s * 2",
    "'%s' % s",
    "l|sort|length",
    "l|sum",
    "l|unique|list",
    "l|map('string')|list",
    "l == l[:]",
    "w|sort",
    "-1 in l",
];

/// Hostile templates that need no loop.
const WHOLE: [&str; 22] = [
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}",
    "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for x in [1] recursive %}{% set y = loop %}{{ y([[1]]) }}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{{ c }}{% endfor %}{% endfor %}{% endfor %}",
    "{{ range(100000000000) }}",
    "{{ [1]|batch(10000000000, 0)|list }}",
    "{{ [1]|slice(10000000000)|list }}",
    "{{ 'a' * 10000000000000000000 }}{{ [1] * 10000000000000000000 }}",
    "{{ 'a'.center(10000000000) }}{{ 'a'|indent(10000000000, true) }}",
    "{{ '%99999999999d' % 1 }}",
    "{{ '%.99999999999f' % 1.5 }}",
    "{{ '{:>99999999999}'.format(1) }}",
    "{{ 9 ** 9 ** 9 ** 9 }}{{ 2 ** 100000000 }}",
    "{% set n = namespace() %}{% set n.x = [n] %}{% set m = namespace() %}{% set m.x = [m] %}{{ n.x == m.x }}",
    "{% set n = namespace() %}{% set n.x = [n] %}{{ n }}{{ n.x }}{{ [n.x, n.x] == [n.x, [n]] }}{{ n.x|tojson }}",
    "{% set n = namespace(x=1) %}{% for i in range(100) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x == [n.x[0], [n.x[1][0], n.x[1][1]]] }}",
    "{% set n = namespace(x=(1,)) %}{% for i in range(100) %}{% set n.x = (n.x, n.x) %}{% endfor %}{{ {n.x: 1} }}{{ n.x < n.x }}",
    "{% set n = namespace(x='a') %}{% for i in range(100) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|string|length }}",
];

fn looped(before: &str, step: &str) -> String {
    format!(
        "{before}{{% for i in range(99999) %}}{{% for j in range(99999) %}}{step}{{% endfor %}}{{% endfor %}}ok"
    )
}

/// Returns sources that nest or repeat so often that a parser must not recurse for each level.
fn long_sources() -> Vec<(String, String)> {
    let deep = |part: &str, end: &str| format!("{{{{ {}1{} }}}}", part.repeat(20_000), end.repeat(20_000));
    let blocks = |open: &str, close: &str| format!("{}{}", open.repeat(9_000), close.repeat(9_000));
    let sources = [
        deep("-", ""),
        deep("not ", ""),
        deep("1 + ", ""),
        deep("1 ~ ", ""),
        deep("1 ** ", ""),
        deep("1 and ", ""),
        deep("1 < ", ""),
        deep("1 if 1 else ", ""),
        deep("(", ")"),
        deep("[", "]"),
        deep("{1:", "}"),
        deep("f(", ")"),
        deep("", "|upper"),
        deep("", ".a"),
        deep("", "[0]"),
        deep("", "()"),
        deep("", " is none"),
        deep("'", ""),
        blocks("{% if 1 %}", "{% endif %}"),
        blocks("{% for x in [1] %}", "{% endfor %}"),
        blocks("{% with %}", "{% endwith %}"),
        blocks("{% macro m() %}", "{% endmacro %}"),
        blocks("{% set x %}", "{% endset %}"),
        blocks("{% filter upper %}", "{% endfilter %}"),
        blocks("{% call m() %}", "{% endcall %}"),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(20_000)),
        format!("{{% set {} = 1 %}}", "(".repeat(20_000)),
        "{#".repeat(100_000),
        "{% raw %}{%".repeat(20_000),
        "{{".repeat(100_000),
        " ".repeat(1 << 20),
    ];
    sources.into_iter().enumerate().map(|(number, source)| (format!("source {number}"), source)).collect()
}

/// Returns all hostile templates, by name.
fn bombs() -> Vec<(String, String)> {
    let lists = DEEP.iter().chain(&GROWING);
    let mut bombs: Vec<_> =
        lists.map(|(name, before, step)| ((*name).to_owned(), looped(before, step))).collect();
    let long =
        "{% set s = 'a' * 1999999 ~ 'b' %}{% set l = range(99999)|list %}{% set w = ('a' * 50000)|list %}";
    bombs.extend(
        WORK.iter().map(|step| ((*step).to_owned(), looped(long, &format!("{{% set t = {step} %}}")))),
    );
    bombs.extend(WHOLE.iter().map(|source| ((*source).to_owned(), (*source).to_owned())));
    bombs.extend(long_sources());
    bombs
}

fn render(source: &str, limits: &RenderLimits) -> chat_format::Result<String> {
    render_pausing(source, limits, NO_PAUSE)
}

fn render_pausing(source: &str, limits: &RenderLimits, pause: Pause) -> chat_format::Result<String> {
    let template = ChatTemplate::from_source(source, Map::new())?;
    template.render_within(&TemplateInput::default(), limits, pause)
}

#[test]
fn every_bomb_ends_in_time() {
    for (name, source) in bombs() {
        assert_in_time(&name, TIME + SLACK, || {
            if let Ok(text) = render(&source, &RenderLimits::new(TIME, MEMORY)) {
                assert!(text.len() <= MEMORY, "{name}: {} bytes", text.len());
            }
        });
    }
}

#[test]
fn deep_values_are_refused() {
    for (name, before, step) in DEEP {
        let source = format!("{before}{{% for i in range(99999) %}}{step}{{% endfor %}}ok");
        let outcome = render(&source, &RenderLimits::new(Duration::from_secs(30), MEMORY));
        let expected = match name {
            // The values are not nested, but each holds the previous one.
            "namespace" | "namespace in a list" | "macro" => "takes more than 32 MiB of memory",
            "unique" => "unhashable type",
            _ => "nests values more than 200 levels deep",
        };
        let error = outcome.map(|text| text.len()).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn a_limit_is_named_in_the_users_words() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("chat_template.jinja");
    for (source, expected) in [
        (
            format!("\n{}", looped("", "{{ 1 }}")),
            "chat template: chat_template.jinja, line 2: took longer than 0.1 s and was stopped",
        ),
        (looped("", "{% set x %}{{ 1 }}{% endset %}\n"), "chat_template.jinja, line 1: took longer than"),
        (
            "\n{{ 'a' * 99999999 }}".into(),
            "chat_template.jinja, line 2: takes more than 32 MiB of memory and was stopped",
        ),
        (
            "{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}".into(),
            "chat_template.jinja, line 1: nests values more than 200 levels deep",
        ),
        (WHOLE[0].into(), "chat_template.jinja, line 1: recurses too deeply"),
    ] {
        std::fs::write(&file, source).expect("it can be written");
        let template = ChatTemplate::load(folder.path()).expect("it loads").expect("there is one");
        // Limits other than time are reached soon, but a test may wait for a processor.
        let time = if expected.contains("longer") { TIME } else { Duration::from_secs(30) };
        let limits = RenderLimits::new(time, MEMORY);
        let error =
            template.render_within(&TemplateInput::default(), &limits, NO_PAUSE).expect_err("it is stopped");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn limits_hold_for_all_renderings_of_a_request() {
    assert_in_time("50 renderings", TIME + SLACK, || {
        let limits = RenderLimits::new(TIME, MEMORY);
        for _ in 0..50 {
            assert!(render(&looped("", "{{ 1 }}"), &limits).is_err());
        }
    });
}

#[test]
fn a_cancelled_rendering_stops() {
    for step in ["{{ 1 }}", "{% set t = s|upper %}", "{% set t = w|sort %}", "{% set t = s.split('a') %}"] {
        let before = "{% set s = 'a' * 9999999 %}{% set w = ('a' * 50000)|list %}";
        assert_in_time(step, TIME + SLACK, || {
            let limits = RenderLimits::new(Duration::from_mins(1), 1 << 30);
            let started = Instant::now();
            let pause = || {
                let goes_on = started.elapsed() < TIME;
                if goes_on { Ok(()) } else { Err(Error::Cancelled) }
            };
            let error = render_pausing(&looped(before, step), &limits, &pause).expect_err("it was cancelled");
            assert!(matches!(error, Error::Cancelled), "{error}");
        });
    }
}

/// A paused rendering does no work, and pauses do not count towards its time.
#[test]
fn a_paused_rendering_waits() {
    let limits = RenderLimits::new(TIME, MEMORY);
    let paused = Mutex::new(Duration::ZERO);
    let pause = || {
        let begun = Instant::now();
        std::thread::sleep(TIME / 2);
        *paused.lock().expect("no panic") += begun.elapsed();
        Ok(())
    };
    let error = render_pausing(&looped("", "{{ 1 }}"), &limits, &pause).expect_err("it is endless");
    assert!(error.to_string().contains("took longer than 0.1 s"), "{error}");
    // It runs for about 5 ms between two pauses. If pauses counted, the second one would end it.
    let paused = *paused.lock().expect("no panic");
    assert!(paused > 2 * TIME, "{paused:?} of pauses");
}
