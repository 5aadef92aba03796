//! `/params`: shows and changes request parameters by name.

use mlx_core::Error;
use mlx_core::engine::RequestOptions;
use mlx_core::sampling::{Kind, PARAMETERS, Parameter, SamplingOptions, Setting, Source, settings};

/// The names of the sources of values: the command line, the profile, and `/params` or `/seed`.
const FLAG: &str = "flag";
const PROFILE: &str = "profile";
const SESSION: &str = "session";

/// Parameters outside the table of sampling parameters.
const OTHERS: [&str; 3] = ["max_tokens", "think_budget", "seed"];

/// Returns the parameters that [`change`] accepts.
pub(super) fn names() -> Vec<&'static str> {
    OTHERS.into_iter().chain(PARAMETERS.iter().map(|it| it.name)).collect()
}

/// Applies `NAME=VALUE ...`; the value `default` resets a parameter. Checks the form only.
pub(crate) fn change(options: &mut RequestOptions, text: &str) -> Result<(), String> {
    for pair in text.split_whitespace() {
        let form = || format!("{pair:?} is not NAME=VALUE, as in temperature=0.7");
        let (name, value) = pair.split_once('=').ok_or_else(form)?;
        set(options, name, value)?;
    }
    Ok(())
}

/// The options of a chat and their sources.
pub(super) struct Params<'a> {
    pub(super) options: &'a RequestOptions,
    /// The options from the command line.
    pub(super) flags: &'a RequestOptions,
    /// The flags with the options of the profile.
    pub(super) initial: &'a RequestOptions,
    /// The values of the model's `generation_config.json`.
    pub(super) checkpoint: &'a SamplingOptions,
}

impl Params<'_> {
    /// Lists every parameter in use with its source, in the format that [`change`] accepts, and the names of unused parameters.
    pub(super) fn table(&self) -> Result<String, Error> {
        let all = self.settings(self.options)?;
        let is_shown = |it: &&Setting| !it.is_off || it.source == Source::Request;
        let row =
            |name: &str, value: &str, source: &str| format!("{:<24} {source}", format!("{name}={value}"));
        let mut lines: Vec<String> =
            self.counts().into_iter().map(|(name, value, source)| row(name, &value, source)).collect();
        for it in all.iter().filter(is_shown) {
            lines.push(row(it.name, &it.value, self.source(it)?));
        }
        let off: Vec<&str> = all.iter().filter(|it| !is_shown(it)).map(|it| it.name).collect();
        if !off.is_empty() {
            lines.push(format!("off: {}", off.join(", ")));
        }
        lines.extend(self.only_flags());
        Ok(lines.join("\n"))
    }

    /// Lists the parameters set by flags or in the chat, on one line.
    pub(super) fn line(&self) -> Result<String, Error> {
        let counts = self.counts().into_iter().map(|(name, value, _)| format!("{name}={value}"));
        let all = self.settings(self.options)?;
        let given = all.iter().filter(|it| it.source == Source::Request);
        let given = given.map(|it| format!("{}={}", it.name, it.value));
        let set: Vec<String> = counts.chain(given).collect();
        Ok(if set.is_empty() { "the model's own defaults".to_owned() } else { set.join(" ") })
    }

    fn settings(&self, options: &RequestOptions) -> Result<Vec<Setting>, Error> {
        settings(&options.sampling, self.checkpoint, options.sampling_defaults)
    }

    /// Returns the token limits and the seed, if set.
    fn counts(&self) -> Vec<(&'static str, String, &'static str)> {
        let count = |name, of: fn(&RequestOptions) -> Option<u64>| {
            let value = of(self.options)?;
            let source = match value {
                _ if of(self.flags) == Some(value) => FLAG,
                _ if of(self.initial) == Some(value) => PROFILE,
                _ => SESSION,
            };
            Some((name, value.to_string(), source))
        };
        let all = [
            count("max_tokens", |it| it.max_tokens.map(|it| it as u64)),
            count("think_budget", |it| it.think_budget.map(|it| it as u64)),
            count("seed", |it| it.sampling.seed),
        ];
        all.into_iter().flatten().collect()
    }

    fn source(&self, setting: &Setting) -> Result<&'static str, Error> {
        Ok(match setting.source {
            Source::Request if self.settings(self.flags)?.contains(setting) => FLAG,
            Source::Request if self.settings(self.initial)?.contains(setting) => PROFILE,
            Source::Request => SESSION,
            other => other.as_str(),
        })
    }

    /// Returns the options that cannot be changed here, as flags.
    fn only_flags(&self) -> Option<String> {
        let flags = flags(self.options).join(" ");
        let source =
            if self.flags == self.initial { "the command line" } else { "the command line or the profile" };
        (!flags.is_empty()).then(|| format!("from {source}: {flags}"))
    }
}

fn flags(options: &RequestOptions) -> Vec<String> {
    let SamplingOptions { logit_bias, dry_sequence_breakers, .. } = &options.sampling;
    let bias = logit_bias.iter().map(|(id, bias)| format!("--logit-bias {id}={bias}"));
    let stop = options.stop.iter().map(|text| format!("--stop {text:?}"));
    let ignore = options.ignore_eos.then(|| "--ignore-eos".to_owned());
    let breakers = dry_sequence_breakers.iter().flat_map(|breakers| match breakers.as_slice() {
        [] => vec!["--dry-sequence-breaker none".to_owned()],
        given => given.iter().map(|text| format!("--dry-sequence-breaker {text:?}")).collect(),
    });
    bias.chain(stop).chain(ignore).chain(breakers).collect()
}

fn set(options: &mut RequestOptions, name: &str, value: &str) -> Result<(), String> {
    let sampling = &mut options.sampling;
    match (name, Parameter::by_name(name)) {
        ("max_tokens", _) => options.max_tokens = read(name, value, Kind::Count, |it| it.parse().ok())?,
        ("think_budget", _) => {
            options.think_budget = read(name, value, Kind::Count, |it| it.parse().ok())?;
        }
        ("seed", _) => sampling.seed = read(name, value, Kind::Count, |it| it.parse().ok())?,
        (_, Some(parameter)) => {
            let number = read(name, value, parameter.kind, |it| parameter.parse(it))?;
            parameter.set(sampling, number);
        }
        (other, None) => {
            return Err(format!("{other} is not a parameter; the parameters are {}", names().join(", ")));
        }
    }
    Ok(())
}

/// Parses a value; `default` means `None`.
fn read<T>(
    name: &str,
    value: &str,
    kind: Kind,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, String> {
    if value == "default" {
        return Ok(None);
    }
    let wrong = || format!("{name} cannot be {value:?}; it must be {}, or default", kind.words());
    parse(value).ok_or_else(wrong).map(Some)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use mlx_core::sampling::SamplingDefaults;

    use super::*;

    fn params<'a>(options: &'a RequestOptions, flags: &'a RequestOptions) -> Params<'a> {
        static NONE: LazyLock<SamplingOptions> = LazyLock::new(SamplingOptions::default);
        Params { options, flags, initial: flags, checkpoint: &NONE }
    }

    fn line(options: &RequestOptions) -> String {
        params(options, options).line().expect("valid")
    }

    #[test]
    fn each_value_is_shown_with_its_source() {
        let mut flags =
            RequestOptions { sampling_defaults: SamplingDefaults::Chat, ..RequestOptions::default() };
        change(&mut flags, "seed=7 top_p=0.9").expect("both are parameters");
        let mut options = flags.clone();
        change(&mut options, "max_tokens=5 top_k=40 dry_base=2").expect("all are parameters");
        let checkpoint = SamplingOptions { temperature: Some(0.6), ..SamplingOptions::default() };
        let mut initial = flags.clone();
        change(&mut initial, "think_budget=9 xtc_probability=0.5").expect("both are parameters");
        change(&mut options, "think_budget=9 xtc_probability=0.5").expect("both are parameters");
        let params = Params { options: &options, flags: &flags, initial: &initial, checkpoint: &checkpoint };
        let table = params.table().expect("valid");
        let rows: Vec<String> =
            table.lines().map(|it| it.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "max_tokens=5 session",
            "think_budget=9 profile",
            "seed=7 flag",
            "temperature=0.6 checkpoint",
            "top_k=40 session",
            "top_p=0.9 flag",
            "min_p=0.05 default",
            "xtc_probability=0.5 profile",
            "xtc_threshold=0.1 default",
            "dry_base=2 session",
        ];
        assert_eq!(rows[..10], expected);
        assert!(rows[10].starts_with("off: typical_p,") && rows.len() == 11, "{table}");
    }

    #[test]
    fn what_is_shown_can_be_typed_again() {
        let mut options = RequestOptions::default();
        assert_eq!(line(&options), "the model's own defaults");
        let text = "max_tokens=5 think_budget=9 seed=7 temperature=0.7 top_k=40 min_p=0.05 repetition_penalty=1.1 dry_allowed_length=3";
        change(&mut options, text).expect("all are parameters");
        assert_eq!(line(&options), text);
        change(&mut options, "seed=default top_k=default").expect("both are parameters");
        for name in names() {
            change(&mut options, &format!("{name}=default")).expect("it is a parameter");
        }
        for parameter in PARAMETERS {
            let value = parameter.example;
            change(&mut options, &format!("{}={value}", parameter.name)).expect("it is a parameter");
            let set = parameter.get(&options.sampling).expect("it was set");
            assert!((set - value).abs() < 1e-6, "{}", parameter.name);
            change(&mut options, &format!("{}=default", parameter.name)).expect("it is a parameter");
        }
        change(&mut options, text).expect("all are parameters");
        change(&mut options, "seed=default top_k=default").expect("both are parameters");
        assert!(!line(&options).contains("seed") && !line(&options).contains("top_k"));
        for (wrong, word) in [
            ("heat=1", "heat"),
            ("temperature", "NAME=VALUE"),
            ("top_k=many", "many"),
            ("seed=-1", "non-negative integer"),
            ("ignore_eos=true", "parameters are max_tokens, think_budget, seed"),
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
        options.sampling.dry_sequence_breakers = Some(Vec::new());
        let flags = "from the command line: --logit-bias 5=-2 --stop \"\\n\" --ignore-eos --dry-sequence-breaker none";
        let table = params(&options, &options).table().expect("valid");
        assert_eq!(table.lines().last(), Some(flags));
    }
}
