//! The sampling parameters as data. [`PARAMETERS`] drives request options, range checks, `generation_config.json`, the fields and schemas of
//! the server, and the command-line flags. `docs/adding-a-sampler-stage.md` shows how to add a row.

mod table;

pub use self::table::{PARAMETERS, SamplingOptions, SamplingParams};
use crate::error::{Error, Result};

/// A numeric sampling parameter.
#[derive(Debug)]
pub struct Parameter {
    /// The name in requests, errors and `/params`. With dashes, it is the flag.
    pub name: &'static str,
    /// A help text without a full stop.
    pub help: &'static str,
    /// The type of number.
    pub kind: Kind,
    /// The allowed values.
    pub range: Range,
    /// The value that has no effect, if there is one.
    pub off: Option<f64>,
    /// The part of the sampler chain that it belongs to.
    pub group: Group,
    /// An example value for documentation.
    pub example: f64,
    /// The placeholder in the command-line help.
    pub value_name: &'static str,
    /// An alternative name of the flag.
    pub flag_alias: Option<&'static str>,
    /// The name in Ollama's API options.
    pub ollama: Option<&'static str>,
    /// The key in `generation_config.json`.
    pub checkpoint: Option<&'static str>,
    default: fn() -> f64,
    is_on: fn(&SamplingParams) -> bool,
    get: fn(&SamplingOptions) -> Option<f64>,
    set: fn(&mut SamplingOptions, Option<f64>),
    value: fn(&SamplingParams) -> f64,
    text: fn(&SamplingParams) -> String,
}

/// The type of number that a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A real number.
    Float,
    /// A non-negative integer.
    Count,
    /// An integer.
    Whole,
}

/// The allowed values of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// This number or more.
    From(f64),
    /// Between these numbers, inclusive.
    Between(f64, f64),
    /// A number of last tokens, or -1 for all.
    Window,
}

/// A part of the sampler chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Temperature and filters.
    Sampling,
    /// Penalties on repeated tokens.
    Penalties,
    /// The penalty on repeated sequences.
    Dry,
}

impl Parameter {
    /// Finds a parameter by its name.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        PARAMETERS.iter().find(|it| it.name == name)
    }

    /// Returns the flag without its leading dashes.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Returns the value in these options, if it is set.
    pub fn get(&self, options: &SamplingOptions) -> Option<f64> {
        (self.get)(options)
    }

    /// Sets the value in the options.
    pub fn set(&self, options: &mut SamplingOptions, value: Option<f64>) {
        (self.set)(options, value);
    }

    /// Returns the default value.
    pub fn default(&self) -> f64 {
        (self.default)()
    }

    /// Parses a value. Checks its type, but not its range.
    pub fn parse(&self, text: &str) -> Option<f64> {
        match self.kind {
            Kind::Float => text.parse::<f32>().ok().map(f64::from),
            Kind::Count => text.parse::<u32>().ok().map(f64::from),
            Kind::Whole => text.parse::<i64>().ok().map(|number| number as f64),
        }
    }

    /// Returns the value in use as a JSON number.
    pub fn text(&self, params: &SamplingParams) -> String {
        (self.text)(params)
    }

    /// Returns true if the value in use has an effect.
    pub fn is_on(&self, params: &SamplingParams) -> bool {
        (self.is_on)(params)
    }

    /// Checks the range of the value in use.
    pub(super) fn check(&self, params: &SamplingParams) -> Result<()> {
        if self.range.contains((self.value)(params)) {
            return Ok(());
        }
        let message = format!("is {}; it must be {}", self.text(params), self.range.words());
        Err(Error::request(self.name, message))
    }
}

impl Kind {
    /// Describes such a number for error messages.
    pub fn words(self) -> &'static str {
        match self {
            Self::Float => "a number",
            Self::Count => "a non-negative integer",
            Self::Whole => "an integer",
        }
    }
}

impl Range {
    /// The smallest allowed value.
    pub fn min(self) -> f64 {
        match self {
            Self::From(min) | Self::Between(min, _) => min,
            Self::Window => -1.0,
        }
    }

    /// The largest allowed value, if there is one.
    pub fn max(self) -> Option<f64> {
        match self {
            Self::Between(_, max) => Some(max),
            Self::From(_) | Self::Window => None,
        }
    }

    fn contains(self, value: f64) -> bool {
        value.is_finite() && value >= self.min() && self.max().is_none_or(|max| value <= max)
    }

    fn words(self) -> String {
        match self {
            Self::From(min) => format!("{min} or more"),
            Self::Between(min, max) => format!("from {min} to {max}"),
            Self::Window => "-1 for the whole history, 0 for off, or a count".to_owned(),
        }
    }
}

/// A Rust type of parameter values.
trait Scalar: Copy {
    const KIND: Kind;
    fn number(self) -> f64;
    fn of(number: f64) -> Self;
}

macro_rules! scalars {
    ($($type:ty: $kind:ident by $number:expr,)*) => {$(
        impl Scalar for $type {
            const KIND: Kind = Kind::$kind;

            fn number(self) -> f64 {
                $number(self)
            }

            fn of(number: f64) -> Self {
                number as Self
            }
        }
    )*};
}
scalars! {
    f32: Float by f64::from,
    u32: Count by f64::from,
    i64: Whole by |whole| whole as f64,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_row_stores_reads_and_checks_its_values() {
        for it in PARAMETERS {
            let mut options = SamplingOptions { seed: Some(0), ..SamplingOptions::default() };
            it.set(&mut options, Some(it.example));
            let value = it.get(&options).expect("it was set");
            assert!((value - it.example).abs() < 1e-6, "{}", it.name);
            let others = PARAMETERS.iter().filter(|other| other.name != it.name);
            assert!(others.clone().all(|other| other.get(&options).is_none()), "{}", it.name);
            let params = SamplingParams::resolve(&options, &SamplingOptions::default()).expect("valid");
            assert_eq!(it.parse(&it.text(&params)), Some(value), "{}", it.name);
            let beyond = [it.range.min() - 1.0, it.range.max().map_or(f64::NAN, |max| max * 1.01 + 1.0)];
            for wrong in beyond.into_iter().filter(|wrong| it.kind == Kind::Float || !wrong.is_nan()) {
                it.set(&mut options, Some(wrong));
                // A count has no negative values.
                if it.get(&options) == Some(wrong) || it.kind == Kind::Float {
                    let refused = SamplingParams::resolve(&options, &SamplingOptions::default());
                    assert!(
                        refused.is_err_and(|error| error.to_string().starts_with(it.name)),
                        "{}",
                        it.name
                    );
                }
            }
        }
    }

    #[test]
    fn a_value_that_is_off_has_no_effect() {
        for it in PARAMETERS {
            let Some(off) = it.off else { continue };
            let mut options = SamplingOptions { seed: Some(0), ..SamplingOptions::default() };
            for other in PARAMETERS.iter().filter(|other| other.name != it.name) {
                other.set(&mut options, Some(other.example));
            }
            let is_on = |value: f64| {
                let mut options = options.clone();
                it.set(&mut options, Some(value));
                it.is_on(&SamplingParams::resolve(&options, &SamplingOptions::default()).expect("valid"))
            };
            assert_eq!([is_on(off), is_on(it.example)], [false, true], "{}", it.name);
        }
    }

    #[test]
    fn the_page_on_sampling_defines_every_parameter() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/sampling.md");
        let page = std::fs::read_to_string(page).expect("the page on sampling");
        let defaults = SamplingParams::resolve(&SamplingOptions::default(), &SamplingOptions::default());
        let defaults = defaults.expect("valid");
        for it in PARAMETERS {
            let alias = it.flag_alias.map_or(String::new(), |alias| format!(", `--{alias}`"));
            let off = it.off.map_or(String::new(), |off| off.to_string());
            let range = match it.range {
                Range::From(min) => format!("{min} and up"),
                Range::Between(min, max) => format!("{min} to {max}"),
                Range::Window => "-1 (all), 0, a count".to_owned(),
            };
            let default =
                if it.off.is_some() && !it.is_on(&defaults) { "off".to_owned() } else { it.text(&defaults) };
            // A window is on by default, and only has an effect with the penalties.
            let default = if it.range == Range::Window { it.text(&defaults) } else { default };
            let off = if off.is_empty() { String::new() } else { format!("{off} ") };
            let row = format!("| {} | `--{}`{alias} | {off}| {range} | {default}", it.name, it.flag());
            assert!(page.contains(&row), "docs/sampling.md lacks the row {row:?}");
        }
    }
}
