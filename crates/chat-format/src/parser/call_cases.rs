//! Individual outputs of models: invalid calls stay text, truncated and malformed calls end, and the work is linear in
//! the text.

use serde_json::{Map, Value, json};

use super::call_tests::{Read, named, parser, read, read_end, read_pieces, weather, written};
use super::input::WORK;
use super::*;

#[test]
fn what_is_no_call_is_text() {
    let tools = weather();
    for (format, text) in [
        ("hermes", "Use <tool_call> for calls."),
        ("hermes", "<tool_call>\n{\"arguments\": {}}\n</tool_call>"),
        ("hermes", "<tool_call>\n{\"name\": \"get_wea"),
        ("hermes", "a < b and <tool"),
        ("qwen3-coder", "<tool_call>\n<function>\n</tool_call>"),
        ("glm-4.5", "<tool_call>get_weather and more"),
        ("llama-3", "{\"name\": \"no_such_tool\", \"parameters\": {}}"),
        ("llama-3", "{\"city\": \"Paris\"}"),
        ("llama-3", "An example: {\"name\": \"get_weather\", \"parameters\": {}}"),
        ("ministral", "[TOOL_CALLS]get_weather in Paris"),
        ("gpt-oss", "Hello"),
    ] {
        let read = read(&named(format), &tools, text, true);
        assert_eq!((read.text.as_str(), read.calls.len()), (text, 0), "{format}: {text}");
    }
}

#[test]
fn a_key_without_end_is_text_however_it_is_cut() {
    let key = "k".repeat(1100);
    let text = format!(
        "<tool_call>\n<function=get_weather>\n<parameter={key}>\n1\n</parameter>\n</function>\n</tool_call>"
    );
    let whole = read(&named("qwen3-coder"), &weather(), &text, false);
    assert!(whole.text.contains(&key), "{whole:?}");
}

#[test]
fn models_write_calls_in_other_ways_too() {
    let tools = weather();
    let call = |args: Value| vec![("get_weather".to_owned(), args)];
    let paris = || call(json!({"city": "Paris"}));
    for (format, text, expected) in [
        (
            "hermes",
            "<tool_call>{'name': 'get_weather', 'arguments': {'city': 'Paris',}}</tool_call>",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>\n{\"arguments\": \"{\\\"city\\\": \\\"Paris\\\"}\", \"name\": \"get_weather\"}",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}</tool_call>",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}}</tool_call>",
            paris(),
        ),
        ("hermes", "<tool_call>{\"name\": \"stop\"}</tool_call>", vec![("stop".to_owned(), json!({}))]),
        (
            "hermes",
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a\nb\"}}</tool_call>",
            call(json!({"city": "a\nb"})),
        ),
        (
            "qwen3-coder",
            "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
            paris(),
        ),
        (
            "qwen3-coder",
            "<tool_call>\n<function=get_weather>\n<parameter=days>\nthree\n</parameter>\n</function>\n</tool_call>",
            call(json!({"days": "three"})),
        ),
        (
            "seed-oss",
            "<seed:tool_call><function=get_weather><parameter=exact>True</parameter><parameter=where>{'x': None}</parameter></function></seed:tool_call>",
            call(json!({"exact": true, "where": {"x": null}})),
        ),
        ("glm-4.7", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>", paris()),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>get_weather:7<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|>",
            paris(),
        ),
        (
            "minicpm5",
            "<function name=\"get_weather\"><param name=\"city\"><![CDATA[a</param>b]]></param></function>",
            call(json!({"city": "a</param>b"})),
        ),
        (
            "llama-3",
            "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
            paris(),
        ),
        (
            "llama-3",
            "{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
            paris(),
        ),
        (
            "gpt-oss",
            " to=functions.get_weather<|channel|>analysis json<|message|>{\"city\": \"Paris\"}<|call|>",
            paris(),
        ),
        (
            "gemma-4",
            "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>, where:{x:1.0}}<tool_call|>",
            call(json!({"city": "Paris", "where": {"x": 1.0}})),
        ),
        (
            "granite-3",
            "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]",
            paris(),
        ),
        (
            "lfm2",
            "<|tool_call_start|>[get_weather(city=\"Paris\", exact=True)]<|tool_call_end|>",
            call(json!({"city": "Paris", "exact": true})),
        ),
        ("mistral-small", "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}", paris()),
        ("mistral-small", "[TOOL_CALLS]get_weather{\"city\": \"Paris\"}", paris()),
        ("functionary-3.2", ">>>all\nHi\n>>>get_weather\n{\"city\": \"Paris\"}", paris()),
    ] {
        let read = read(&named(format), &tools, text, false);
        let parsed =
            |args: &str| serde_json::from_str(args).unwrap_or_else(|_| panic!("{format}: {args} of {text}"));
        let calls: Vec<(String, Value)> =
            read.calls.iter().map(|(name, args, _)| (name.clone(), parsed(args))).collect();
        assert_eq!(calls, expected, "{format}: {text}\n{read:?}");
        assert!(read.text.is_empty() || read.text == "Hi", "{format}: {read:?}");
    }
}

#[test]
fn a_word_that_is_no_value_stays_and_a_number_may_have_any_size() {
    let hermes = |value: &str| {
        let text =
            format!("<tool_call>\n{{\"name\": \"stop\", \"arguments\": {{\"a\": {value} }}}}\n</tool_call>");
        read(&named("hermes"), &weather(), &text, false)
    };
    let broken = hermes("oops");
    assert_eq!(broken.calls, [("stop".to_owned(), "{\"a\": ".to_owned(), true)]);
    assert_eq!(broken.text, "oops }}\n</tool_call>");
    let long = "x".repeat(2000);
    assert_eq!(hermes(&long).text, format!("{long} }}}}\n</tool_call>"));
    for number in ["0.56E12892487", "-1e-400000", "123456789012345678901234567890"] {
        let read = hermes(number);
        assert_eq!(read.calls[0].1, format!("{{\"a\": {number}}}"));
        assert_eq!(read.text, "");
    }
}

#[test]
fn white_space_before_what_breaks_a_call_does_not_depend_on_the_cut() {
    let text = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value\u{af}aris</arg_value>\n";
    let read = read(&named("glm-4.5"), &weather(), text, false);
    assert_eq!(read.calls, [("get_weather".to_owned(), "{\"city\":".to_owned(), true)]);
    assert_eq!(read.text, "\n<arg_value\u{af}aris</arg_value>\n");
}

#[test]
fn a_name_that_is_no_text_is_read_alike_wherever_it_is_cut() {
    for name in ["é  x", "x{\"name\": \"stop\"}", "12 {}", "x\n{\"a\": 1}"] {
        let text = format!("<tool_call>{{\"name\":{name}}}</tool_call>");
        assert_eq!(read(&named("hermes"), &weather(), &text, false).text, text);
    }
}

#[test]
fn rare_white_space_where_a_call_on_a_channel_should_begin_is_text() {
    let text = " to=functions.get_weather<|channel|>commentary<|message|>\u{b}\"ci";
    assert_eq!(read(&named("gpt-oss"), &weather(), text, false).text, "\u{b}\"ci");
}

#[test]
fn a_call_that_a_limit_cuts_has_not_ended_the_answer() {
    for (written, arguments) in [
        ("{\"name\": \"stop\", \"arguments\": {\"a\": fal", "{\"a\": "),
        ("{\"name\": \"stop\", \"arguments\": {\"a\": 1e", "{\"a\": "),
        ("{\"name\": \"stop\", \"arguments\": {\"a\": \"x", "{\"a\": \"x"),
    ] {
        let text = format!("<tool_call>{written}");
        let whole = read(&named("hermes"), &weather(), &text, true);
        assert_eq!(
            (whole.calls.len(), whole.calls[0].1.as_str(), whole.text.as_str()),
            (1, arguments, ""),
            "{text}"
        );
        let mut parser = parser(&named("hermes"), &weather()).with_single_call();
        parser.push(9, &text, &text);
        parser.end("", true);
        assert!(!parser.has_ended(), "{text}");
    }
}

#[test]
fn a_broken_call_is_cut_where_it_breaks_and_the_rest_is_text() {
    let broken = "<tool_call>\n{\"name\": \"stop\", \"arguments\": {\"a\": 1, oops}}\n</tool_call>";
    let read = read(&named("hermes"), &weather(), broken, false);
    assert_eq!(read.calls, [("stop".to_owned(), "{\"a\": 1, \"oops\"".to_owned(), true)]);
    assert_eq!(read.text, "}}\n</tool_call>");
}

#[test]
fn a_call_that_the_limit_cuts_stays_as_it_is() {
    for (format, text, args) in [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par",
            "{\"city\": \"Par",
        ),
        ("qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", "{\"city\":\"Par"),
        (
            "glm-4.5",
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n",
            "{\"city\":\"Paris\"",
        ),
        (
            "gpt-oss",
            "<|channel|>commentary to=functions.get_weather<|message|>{\"city\": \"Par",
            "{\"city\": \"Par",
        ),
    ] {
        let read = read(&named(format), &weather(), text, true);
        assert_eq!((read.text.as_str(), read.calls[0].1.as_str()), ("", args), "{format}");
    }
}

#[test]
fn a_single_call_ends_the_reading() {
    let format = named("hermes");
    let text = written(&format, &[("stop", Map::new()), ("stop", Map::new())]) + "more";
    let mut parser = parser(&format, &weather()).with_single_call();
    let mut read = Read::default();
    for letter in text.chars().map(String::from) {
        read.add(parser.push(9, &letter, &letter));
    }
    assert!(parser.has_ended());
    read.add(read_end(&mut parser));
    assert_eq!((read.calls.len(), read.text.as_str()), (1, ""));
}

#[test]
fn the_work_grows_with_the_text_alone() {
    let work = |format: &CallFormat, unit: &str, count: usize| {
        let text = unit.repeat(count);
        WORK.set(0);
        let letters = text.as_bytes().chunks(3).map(|piece| std::str::from_utf8(piece).expect("ASCII"));
        read_pieces(parser(format, &weather()), letters, true);
        WORK.get()
    };
    for (format, unit) in [
        ("hermes", "<tool_call>\n"),
        ("hermes", "<tool_call>{\"arguments\": {\"a\": \"<tool_call>"),
        ("hermes", " \n"),
        ("qwen3-coder", "<tool_call><function=stop><parameter=a>\n"),
        ("lfm2", "<|tool_call_start|>[stop(a='"),
        ("minimax-m3", "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"stop\">"),
        ("gpt-oss", "<|channel|>commentary to=functions.stop<|message|>{\"a\": "),
    ] {
        let format = named(format);
        let (short, long) = (work(&format, unit, 200), work(&format, unit, 3_200));
        assert!(short > 200 && long < 20 * short, "{unit:?}: {short}, and {long} for 16 times the text");
    }
}
