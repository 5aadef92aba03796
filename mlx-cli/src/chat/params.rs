//! `/params`: the parameters of a request by name, to show and to change.

use std::str::FromStr;

use mlx_core::engine::RequestOptions;
use mlx_core::sampling::SamplingOptions;

/// The parameters that [`change`] knows.
pub(super) const NAMES: [&str; 17] = [
    "max_tokens",
    "seed",
    "temperature",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "penalty_last_n",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
];

/// Applies `NAME=VALUE ...`; the value `default` resets a parameter. Checks the form only.
pub(super) fn change(options: &mut RequestOptions, text: &str) -> Result<(), String> {
    for pair in text.split_whitespace() {
        let form = || format!("{pair:?} is not NAME=VALUE, as in temperature=0.7");
        let (name, value) = pair.split_once('=').ok_or_else(form)?;
        set(options, name, value)?;
    }
    Ok(())
}

/// The parameters that are set, as [`change`] reads them.
pub(super) fn show(options: &RequestOptions) -> String {
    fn say<T: ToString>(name: &str, value: Option<T>) -> Option<String> {
        value.map(|value| format!("{name}={}", value.to_string()))
    }
    let SamplingOptions { xtc, penalties, dry, .. } = &options.sampling;
    let sampling = &options.sampling;
    let set: Vec<String> = [
        say("max_tokens", options.max_tokens),
        say("seed", sampling.seed),
        say("temperature", sampling.temperature),
        say("top_k", sampling.top_k),
        say("typical_p", sampling.typical_p),
        say("top_p", sampling.top_p),
        say("min_p", sampling.min_p),
        say("xtc_probability", xtc.probability),
        say("xtc_threshold", xtc.threshold),
        say("repetition_penalty", penalties.repetition),
        say("frequency_penalty", penalties.frequency),
        say("presence_penalty", penalties.presence),
        say("penalty_last_n", penalties.window),
        say("dry_multiplier", dry.multiplier),
        say("dry_base", dry.base),
        say("dry_allowed_length", dry.allowed_length),
        say("dry_penalty_last_n", dry.window),
    ]
    .into_iter()
    .flatten()
    .collect();
    match (set.join(" "), flags(options).join(" ")) {
        (set, flags) if set.is_empty() && flags.is_empty() => "the model's own defaults".to_owned(),
        (set, flags) if flags.is_empty() => set,
        (set, flags) => format!("{set}\nfrom the command line: {flags}").trim_start().to_owned(),
    }
}

/// Parameters that cannot be changed here, as flags.
fn flags(options: &RequestOptions) -> Vec<String> {
    let SamplingOptions { logit_bias, dry, .. } = &options.sampling;
    let bias = logit_bias.iter().map(|(id, bias)| format!("--logit-bias {id}={bias}"));
    let stop = options.stop.iter().map(|text| format!("--stop {text:?}"));
    let ignore = options.ignore_eos.then(|| "--ignore-eos".to_owned());
    let breakers = dry.breakers.iter().flat_map(|breakers| match breakers.as_slice() {
        [] => vec!["--dry-sequence-breaker none".to_owned()],
        given => given.iter().map(|text| format!("--dry-sequence-breaker {text:?}")).collect(),
    });
    bias.chain(stop).chain(ignore).chain(breakers).collect()
}

fn set(options: &mut RequestOptions, name: &str, value: &str) -> Result<(), String> {
    let sampling = &mut options.sampling;
    match name {
        "max_tokens" => put(&mut options.max_tokens, name, value),
        "seed" => put(&mut sampling.seed, name, value),
        "temperature" => put(&mut sampling.temperature, name, value),
        "top_k" => put(&mut sampling.top_k, name, value),
        "typical_p" => put(&mut sampling.typical_p, name, value),
        "top_p" => put(&mut sampling.top_p, name, value),
        "min_p" => put(&mut sampling.min_p, name, value),
        "xtc_probability" => put(&mut sampling.xtc.probability, name, value),
        "xtc_threshold" => put(&mut sampling.xtc.threshold, name, value),
        "repetition_penalty" => put(&mut sampling.penalties.repetition, name, value),
        "frequency_penalty" => put(&mut sampling.penalties.frequency, name, value),
        "presence_penalty" => put(&mut sampling.penalties.presence, name, value),
        "penalty_last_n" => put(&mut sampling.penalties.window, name, value),
        "dry_multiplier" => put(&mut sampling.dry.multiplier, name, value),
        "dry_base" => put(&mut sampling.dry.base, name, value),
        "dry_allowed_length" => put(&mut sampling.dry.allowed_length, name, value),
        "dry_penalty_last_n" => put(&mut sampling.dry.window, name, value),
        other => Err(format!("{other} is not a parameter; there are {}", NAMES.join(", "))),
    }
}

/// A type of parameters.
trait Number: FromStr {
    /// Its name in messages.
    const FORM: &str;
}

impl Number for f32 {
    const FORM: &str = "a number";
}

impl Number for i64 {
    const FORM: &str = "a whole number";
}

impl Number for u32 {
    const FORM: &str = "a whole number from 0 on";
}

impl Number for u64 {
    const FORM: &str = "a whole number from 0 on";
}

impl Number for usize {
    const FORM: &str = "a whole number from 0 on";
}

fn put<T: Number>(place: &mut Option<T>, name: &str, value: &str) -> Result<(), String> {
    *place = match value {
        "default" => None,
        value => {
            let wrong = |_| format!("{name} cannot be {value:?}; it must be {}, or default", T::FORM);
            Some(value.parse().map_err(wrong)?)
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_typed_again() {
        let mut options = RequestOptions::default();
        assert_eq!(show(&options), "the model's own defaults");
        let text = "max_tokens=5 seed=7 temperature=0.7 top_k=40 min_p=0.05 repetition_penalty=1.1 dry_allowed_length=3";
        change(&mut options, text).expect("all are parameters");
        assert_eq!(show(&options), text);
        change(&mut options, "seed=default top_k=default").expect("both are parameters");
        for name in NAMES {
            change(&mut options, &format!("{name}=default")).expect("it is a parameter");
        }
        change(&mut options, text).expect("all are parameters");
        change(&mut options, "seed=default top_k=default").expect("both are parameters");
        assert!(!show(&options).contains("seed") && !show(&options).contains("top_k"));
        for (wrong, word) in [
            ("heat=1", "heat"),
            ("temperature", "NAME=VALUE"),
            ("top_k=many", "many"),
            ("seed=-1", "from 0 on"),
            ("ignore_eos=true", "there are max_tokens, seed"),
        ] {
            let message = change(&mut options, wrong).expect_err(wrong);
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn what_only_flags_can_say_is_shown_too() {
        let mut options =
            RequestOptions { ignore_eos: true, stop: vec!["\n".into()], ..RequestOptions::default() };
        options.sampling.logit_bias = vec![(5, -2.0)];
        options.sampling.dry.breakers = Some(Vec::new());
        let flags = "from the command line: --logit-bias 5=-2 --stop \"\\n\" --ignore-eos --dry-sequence-breaker none";
        assert_eq!(show(&options), flags);
        options.max_tokens = Some(5);
        assert_eq!(show(&options), format!("max_tokens=5\n{flags}"));
    }
}
