//! Tests that JSON is written as it was read.

use serde_json::json;

use super::*;

fn read(text: &str) -> Value {
    parse(text.as_bytes()).expect(text)
}

#[test]
fn numbers_keep_their_text() {
    let text = concat!(
        r#"{"a":[0.9452706955539223,123456789012345678901234567890,-1.50,1E5,1e-7,-0,-0.0,18446744073709551616,5],"#,
        r#""4\"5":"6\\","7":{"8":-9223372036854775809},"e":true,"f":null}"#
    );
    let value = read(text);
    assert_eq!(value.to_string(), text);
    assert_eq!(serde_json::from_str::<Value>(text).expect("the same reader"), value);
    assert_eq!(to_value(&value).expect("it is JSON"), value);
    let spaced = read(" { \"a\" : [ 1.0 , 2 ] ,\n\"b\": 3e2 } ");
    assert_eq!(spaced.to_string(), r#"{"a":[1.0,2],"b":3e2}"#);
}

#[test]
fn numbers_have_values() {
    let number = |text: &str| read(text).as_number().cloned().expect("a number");
    assert_eq!(number("18446744073709551615").as_u64(), Some(u64::MAX));
    assert_eq!(number("-9223372036854775808").as_i64(), Some(i64::MIN));
    assert_eq!(number("1e2").as_i64(), None);
    assert_eq!(number("1e2").as_f64(), Some(100.0));
    assert_eq!(
        number("123456789012345678901234567890").as_f64(),
        Some(123_456_789_012_345_678_901_234_567_890.0)
    );
    assert!(number("-0").is_integer() && !number("1.0").is_integer() && !number("1e2").is_integer());
}

#[test]
fn values_of_64_bits_go_both_ways() {
    let value = json!({"a": [1, -2.5, "b", null, true], "c": {"d": u64::MAX}});
    assert_eq!(serde_json::Value::from(Value::from(value.clone())), value);
    assert_eq!(Value::from(value.clone()).to_string(), value.to_string());
}

#[test]
fn broken_texts_are_refused() {
    for text in ["", "{", "[1,]", "1 2", "01", "1.", "{\"a\": 1e999}", &"[".repeat(100_000)] {
        assert!(parse(text.as_bytes()).is_err(), "{text:.20}");
    }
    let twice = r#"{"a": 1, "b": {"c": 1, "c": 2}}"#;
    assert!(parse_strict(twice.as_bytes()).is_err());
    assert_eq!(read(twice).to_string(), r#"{"a":1,"b":{"c":2}}"#);
}
