//! Flags for the sampling parameters, generated from the table of parameters.

use std::sync::LazyLock;

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use mlx_core::sampling::{Group, PARAMETERS, Parameter, SamplingDefaults, SamplingOptions, SamplingParams};

/// The names of the flags, static because clap borrows them.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| PARAMETERS.iter().map(Parameter::flag).collect());

/// The sampling parameters that flags set.
#[derive(Debug, Clone, Default)]
pub(crate) struct SamplingFlags(SamplingOptions);

impl SamplingFlags {
    pub(crate) fn options(&self) -> &SamplingOptions {
        &self.0
    }
}

impl Args for SamplingFlags {
    fn augment_args(command: Command) -> Command {
        command.args(PARAMETERS.iter().zip(NAMES.iter()).map(|(parameter, name)| arg(parameter, name)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SamplingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for parameter in PARAMETERS {
            if let Some(value) = matches.get_one::<f64>(parameter.name) {
                parameter.set(&mut self.0, Some(*value));
            }
        }
        Ok(())
    }
}

fn arg(parameter: &'static Parameter, name: &'static str) -> Arg {
    let parse =
        |text: &str| parameter.parse(text).ok_or_else(|| format!("it must be {}", parameter.kind.words()));
    let arg = Arg::new(parameter.name)
        .long(name)
        .value_name(parameter.value_name)
        .value_parser(parse)
        .allow_negative_numbers(true)
        .help_heading(match parameter.group {
            Group::Sampling => "Sampling",
            Group::Penalties => "Penalties",
            Group::Dry => "DRY (repeated sequences)",
        })
        .help(format!("{} [default: {}]", parameter.help, default(parameter)));
    arg.visible_aliases(parameter.flag_alias)
}

/// Describes the default value of the flag.
fn default(parameter: &Parameter) -> String {
    let of = |options: &SamplingOptions| {
        // The defaults are within their ranges.
        let params = SamplingParams::resolve(options, &SamplingOptions::default()).ok()?;
        Some(parameter.text(&params))
    };
    let chat = SamplingDefaults::Chat.options();
    let text = if parameter.get(&chat).is_some() {
        of(&chat).map(|value| format!("the model's; {value} if it sets no sampling"))
    } else if parameter.off == Some(parameter.default()) {
        Some("off".to_owned())
    } else {
        of(&SamplingOptions::default())
    };
    text.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<SamplingOptions, Error> {
        let command = SamplingFlags::augment_args(Command::new("mlx"));
        let matches = command.try_get_matches_from(words)?;
        SamplingFlags::from_arg_matches(&matches).map(|flags| flags.0)
    }

    #[test]
    fn every_parameter_is_a_flag() {
        for parameter in PARAMETERS {
            let names = std::iter::once(parameter.flag()).chain(parameter.flag_alias.map(str::to_owned));
            for name in names {
                let value = parameter.example.to_string();
                let options = parse(&["mlx", &format!("--{name}"), &value]).expect("a flag");
                let given = parameter.get(&options).expect("it was given");
                assert!((given - parameter.example).abs() < 1e-6, "--{name}");
                parse(&["mlx", &format!("--{name}"), "much"]).expect_err("no number");
            }
        }
    }

    #[test]
    fn the_help_names_the_value_without_the_flag() {
        let help = |name| {
            let parameter = Parameter::by_name(name).expect("a parameter");
            arg(parameter, "flag").get_help().map(ToString::to_string).unwrap_or_default()
        };
        for (name, end) in [
            ("temperature", "[default: the model's; 0.8 if it sets no sampling]"),
            ("top_p", "[default: off]"),
            ("xtc_threshold", "[default: 0.1]"),
            ("penalty_last_n", "[default: -1]"),
            ("dry_base", "[default: 1.75]"),
        ] {
            assert!(help(name).ends_with(end), "{}", help(name));
        }
    }
}
