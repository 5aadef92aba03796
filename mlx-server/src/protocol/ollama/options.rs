//! The `options` of requests in Ollama's API.

use mlx_core::sampling::{PARAMETERS, SamplingOptions};
use mlx_json::{Number, Value};
use serde_json::json;

use crate::chat_request::GivenOptions;
use crate::error::ApiError;
use crate::field_value::as_integer;
use crate::fields::Fields;
use crate::protocol::openai::{OneOrMany, sampling};

/// Options about loading the model. The server's flags control that, and no answer depends on it.
const LOAD_OPTIONS: [&str; 10] = [
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "use_mmap",
    "use_mlock",
    "low_vram",
    "numa",
    "num_keep",
];

/// Options that support only values without effect.
fn fixed_fields() -> [(&'static str, Vec<serde_json::Value>, &'static str); 5] {
    [
        ("mirostat", vec![json!(0)], "there is no mirostat; see top_p and min_p"),
        ("mirostat_tau", vec![json!(5), json!(5.0)], "there is no mirostat"),
        ("mirostat_eta", vec![json!(0.1)], "there is no mirostat"),
        ("tfs_z", vec![json!(1), json!(1.0)], "there is no tail-free sampling; see typical_p"),
        ("penalize_newline", vec![json!(true)], "line breaks are penalized like all tokens"),
    ]
}

/// Parsed options.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Options {
    /// The sampling parameters.
    pub(crate) sampling: SamplingOptions,
    /// The limit of generated tokens.
    pub(crate) max_tokens: Option<usize>,
    /// The stop strings.
    pub(crate) stop: Vec<String>,
    /// The options that are given, even if they are those of the default.
    pub(crate) given: GivenOptions,
    /// The full names of unused options.
    pub(crate) unused: Vec<String>,
}

/// Reads `options`.
pub(crate) fn read(options: Option<Value>) -> Result<Options, ApiError> {
    let Some(options) = options else { return Ok(Options::default()) };
    let mut fields = Fields::nested("options", options)?;
    for option in LOAD_OPTIONS {
        fields.take_unused(option, &[]);
    }
    for (option, allowed, reason) in fixed_fields() {
        fields.expect_one_of(option, &allowed, reason)?;
    }
    let is_given = |name: &str| fields.peek(name).is_some_and(|value| !value.is_null());
    let given =
        GivenOptions { max_tokens: is_given("num_predict"), stop: is_given("stop"), seed: is_given("seed") };
    let mut sampling = SamplingOptions { seed: seed(&mut fields)?, ..SamplingOptions::default() };
    for parameter in PARAMETERS {
        if let Some(name) = parameter.ollama {
            sampling::take(&mut fields, parameter, name, &mut sampling)?;
        }
    }
    let max_tokens = max_tokens(&mut fields)?;
    let stop: Option<OneOrMany> = fields.take("stop")?;
    let unused = fields.into_unused();
    let stop = stop.map_or(Vec::new(), OneOrMany::into_vec);
    Ok(Options { sampling, max_tokens, stop, given, unused })
}

/// Takes the seed. As in Ollama, a negative seed means a random one.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let given: Option<i64> = fields.take("seed")?;
    Ok(given.and_then(|seed| u64::try_from(seed).ok()))
}

/// Takes the token limit. -1 and -2 mean no limit besides the context.
fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let path = fields.name("num_predict");
    let Some(given) = fields.take::<Number>("num_predict")? else { return Ok(None) };
    match as_integer(&given) {
        Some(-2 | -1) => Ok(None),
        Some(count) if count >= 0 => Ok(usize::try_from(count).ok()),
        _ => Err(ApiError::field(path, "must be a whole number of at least -2")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    #[test]
    fn every_parameter_with_a_name_here_is_an_option() {
        for parameter in PARAMETERS {
            let Some(name) = parameter.ollama else { continue };
            let options = read(Some(json!({name: sampling::example(parameter)}))).expect("valid");
            let value = parameter.get(&options.sampling).expect("it was given");
            assert!((value - parameter.example).abs() < 1e-6, "{name}");
        }
    }

    #[test]
    fn options_are_honored_neutral_named_or_refused() {
        let given = json!({"temperature": 0.5, "num_predict": 7, "stop": "x", "num_ctx": 4096, "seed": 3, "repeat_last_n": -1, "mirostat": 0});
        let options = read(Some(given)).expect("valid");
        assert_eq!((options.sampling.temperature, options.sampling.seed), (Some(0.5), Some(3)));
        assert_eq!((options.max_tokens, options.stop.as_slice()), (Some(7), &["x".to_owned()][..]));
        assert_eq!(options.unused, ["options.num_ctx"]);
        assert_eq!(read(Some(json!({"moods": 1}))).expect("valid").unused, ["options.moods"]);
        assert_eq!(read(Some(json!({"num_predict": -1}))).expect("valid").max_tokens, None);
        for (option, value) in [("mirostat", json!(1)), ("num_predict", json!(-3)), ("top_p", json!("a"))] {
            let error = read(Some(json!({option: value}))).expect_err(option);
            assert_eq!(error.param(), Some(format!("options.{option}").as_str()));
        }
    }
}
