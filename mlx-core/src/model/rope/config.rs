//! The config of rotary embedding: theta, the rotated share of a head, and the scaling of frequencies for contexts beyond the original
//! training length. transformers' `modeling_rope_utils` is the reference.

use super::mrope_section::MropeSection;
use crate::cache::Variant;
use crate::config::Fields;
use crate::error::Result;

/// The variant of sequences that are longer than the short context of LongRoPE.
pub(in crate::model) const LONG: Variant = Variant::new(1);

/// The scaling of frequencies.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies divided by the factor (Chen et al., 2023, arXiv:2306.15595).
    Linear(f64),
    /// Llama 3.1: low frequencies are divided by the factor, high ones stay unchanged, and those between are blended.
    Llama3 {
        /// The divisor of the lowest frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` get the full factor.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` stay unchanged.
        high_freq_factor: f64,
        /// The context length before scaling, in tokens.
        original_max_position_embeddings: f64,
    },
    /// YaRN (Peng et al., 2023, arXiv:2309.00071): like Llama 3.1, but blended by the index of pairs.
    Yarn {
        /// The divisor of the lowest frequencies.
        factor: f64,
        /// Pairs with more rotations than this in the original context stay unchanged.
        fast: f64,
        /// Pairs with fewer rotations than this get the full factor.
        slow: f64,
        /// True if the bounds between them are rounded to whole pairs.
        truncate: bool,
        /// The context length before scaling, in tokens.
        original_max_position_embeddings: f64,
    },
    /// LongRoPE (Ding et al., 2024, arXiv:2402.13753): a factor for each pair of dimensions.
    Long {
        /// The factors for sequences of up to `original_max_position_embeddings` tokens.
        short: Vec<f64>,
        /// The factors for all tokens of longer sequences.
        long: Vec<f64>,
        /// The longest sequence before scaling, in tokens.
        original_max_position_embeddings: usize,
    },
    /// The frequencies of a fully rotated head, divided by the factor. Pairs beyond the rotated dimensions have frequency 0.
    Proportional {
        /// The divisor of all frequencies.
        factor: f64,
        /// The size of the full head.
        head_dim: usize,
    },
}

/// The rotary embedding of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// The number of rotated dimensions of a head; even.
    pub dims: usize,
    /// The base of the frequencies, `rope_theta`.
    pub theta: f64,
    /// True if a pair is two adjacent dimensions. Otherwise it is one dimension of the first half and one of the second.
    pub interleaved: bool,
    /// The scaling of frequencies.
    pub scaling: RopeScaling,
    /// The factor of rotated queries and keys.
    pub attention_factor: Option<f64>,
    /// The numbers of pairs for time, height and width, if rows have such positions.
    pub mrope_section: Option<MropeSection>,
}

/// The defaults of a family for keys that config.json lacks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeDefaults {
    /// The base of the frequencies.
    pub theta: f64,
    /// The default of `partial_rotary_factor`; `None` if the whole head is rotated regardless of config.json.
    pub partial_rotary_factor: Option<f64>,
    /// The default of [`RopeConfig::interleaved`], if config.json has no `rope_traditional`.
    pub interleaved: bool,
    /// The longest sequence, in tokens.
    pub max_position_embeddings: usize,
    /// The longest sequence before scaling, in tokens; `None` for `max_position_embeddings`.
    pub original_max_position_embeddings: Option<usize>,
    /// True if `alpha` scales theta for the type `dynamic`. Other families ignore it.
    pub has_dynamic_alpha: bool,
    /// The default of `mrope_section`; `None` for families with one position per row, regardless of config.json.
    pub mrope_section: Option<MropeSection>,
}

/// A section of config.json about rope, and the fields around it.
struct Section<'a> {
    fields: &'a Fields,
    inner: Option<Fields>,
    /// True if the section is for one kind of layer.
    is_of_kind: bool,
    defaults: RopeDefaults,
}

impl RopeConfig {
    /// Returns the length up to which sequences use the short factors of LongRoPE. All positions of longer ones use the long factors. `None`
    /// for other scalings.
    pub fn short_context(&self) -> Option<usize> {
        match &self.scaling {
            RopeScaling::Long { original_max_position_embeddings, .. } => {
                Some(*original_max_position_embeddings)
            }
            _ => None,
        }
    }

    /// Reads `rope_theta`, `partial_rotary_factor` and `rope_scaling`, or the newer `rope_parameters`, which contains all of them.
    pub fn read(fields: &Fields, head_dim: usize, defaults: RopeDefaults) -> Result<Self> {
        let scaling = fields.section("rope_scaling")?.filter(|section| section.keys().next().is_some());
        let inner = if scaling.is_some() { scaling } else { fields.section("rope_parameters")? };
        Section { fields, inner, is_of_kind: false, defaults }.read(head_dim)
    }

    /// Reads the rope of layers of `kind`: `rope_parameters` may have a section for each kind.
    pub fn read_for(fields: &Fields, kind: &str, head_dim: usize, defaults: RopeDefaults) -> Result<Self> {
        let of_kind = match fields.section("rope_parameters")? {
            Some(section) if section.has(kind) => section.section(kind)?,
            _ => None,
        };
        match of_kind {
            Some(inner) => Section { fields, inner: Some(inner), is_of_kind: true, defaults }.read(head_dim),
            None => Self::read(fields, head_dim, defaults),
        }
    }

    /// Reads the section of `rope_parameters` for layers of `kind`. Without such a section, they use only theta, regardless of the values for
    /// other layers.
    pub fn of_kind(fields: &Fields, kind: &str, head_dim: usize, defaults: RopeDefaults) -> Result<Self> {
        let own = fields.section("rope_parameters")?.filter(|section| section.has(kind));
        match own {
            Some(_) => Self::read_for(fields, kind, head_dim, defaults),
            None => Section { fields, inner: None, is_of_kind: true, defaults }.read(head_dim),
        }
    }
}

impl Section<'_> {
    /// Reads a positive number from the section, or else from the fields around it.
    fn number(&self, key: &str) -> Result<Option<f64>> {
        if let Some(inner) = self.inner.as_ref().filter(|inner| inner.has(key)) {
            return inner.optional_positive(key);
        }
        let newer = self.fields.section("rope_parameters")?.filter(|section| section.has(key));
        newer.as_ref().unwrap_or(self.fields).optional_positive(key)
    }

    /// Returns the rotated share of a head.
    fn share(&self) -> Result<f64> {
        let kind = self.inner.as_ref().map(|inner| inner.optional_text(kind_key(inner))).transpose()?;
        let usual = match (self.defaults.partial_rotary_factor, kind.flatten()) {
            (None, Some("proportional")) => 1.0,
            (None, _) => return Ok(1.0),
            (Some(usual), _) => usual,
        };
        Ok(self.number("partial_rotary_factor")?.unwrap_or(usual))
    }

    fn read(&self, head_dim: usize) -> Result<RopeConfig> {
        let share = self.share()?;
        if share > 1.0 {
            return Err(self
                .fields
                .error("partial_rotary_factor", format_args!("is {share}; it must be at most 1")));
        }
        let dims = (head_dim as f64 * share) as usize;
        if dims == 0 || !dims.is_multiple_of(2) {
            let message =
                format_args!("rotates {dims} of {head_dim} dimensions; rope needs an even number above 0");
            let key = if share < 1.0 { "partial_rotary_factor" } else { "head_dim" };
            return Err(self.fields.error(key, message));
        }
        let mut config = RopeConfig {
            dims,
            theta: self.number("rope_theta")?.unwrap_or(self.defaults.theta),
            interleaved: self.defaults.interleaved,
            scaling: RopeScaling::None,
            attention_factor: None,
            mrope_section: self.mrope_section()?,
        };
        if let Some(inner) = &self.inner {
            self.read_scaling(&mut config, inner, head_dim)?;
        }
        Ok(config)
    }

    /// Reads `mrope_section`. Like transformers, it ignores `mrope_interleaved`: the family defines the order.
    fn mrope_section(&self) -> Result<Option<MropeSection>> {
        let Some(usual) = self.defaults.mrope_section else { return Ok(None) };
        let Some(inner) = self.inner.as_ref().filter(|inner| inner.has("mrope_section")) else {
            return Ok(Some(usual));
        };
        let whole = |number: &f64| {
            (number.fract() == 0.0 && (0.0..65_536.0).contains(number)).then_some(*number as usize)
        };
        let given: Option<Vec<usize>> = inner.numbers("mrope_section")?.iter().map(whole).collect();
        let counts = given.and_then(|given| <[usize; 3]>::try_from(given).ok());
        let counts = counts.ok_or_else(|| inner.error("mrope_section", "must be three counts of pairs"))?;
        Ok(Some(usual.with(counts)))
    }

    /// Reads the scaling into `config`.
    fn read_scaling(&self, config: &mut RopeConfig, inner: &Fields, head_dim: usize) -> Result<()> {
        let key = kind_key(inner);
        match inner.optional_text(key)? {
            // Dynamic scaling applies only beyond the context length, which no sequence exceeds.
            // "mrope" concerns only pictures, not text.
            Some("dynamic") if self.defaults.has_dynamic_alpha => scale_theta(config, inner)?,
            None | Some("default" | "dynamic" | "mrope") => {}
            Some("linear") => config.scaling = RopeScaling::Linear(inner.positive("factor")?),
            Some("llama3") => config.scaling = self.llama3(inner)?,
            Some("yarn" | "deepseek_yarn") => (config.scaling, config.attention_factor) = self.yarn(inner)?,
            Some("longrope" | "su") => {
                (config.scaling, config.attention_factor) = self.long(inner, config.dims / 2)?;
            }
            Some("proportional") => {
                let factor = inner.optional_positive("factor")?.unwrap_or(1.0);
                config.scaling = RopeScaling::Proportional { factor, head_dim };
            }
            Some(other) => {
                let known = "default, linear, dynamic, mrope, llama3, yarn, deepseek_yarn, longrope, su and proportional";
                return Err(
                    inner.error(key, format_args!("{other:?} is not supported; supported are {known}"))
                );
            }
        }
        Ok(())
    }

    /// Returns the context before scaling. The key outside the section takes precedence, except for sections about one kind of layer.
    /// Families with a separate default ignore the key in the section.
    fn original_max_position_embeddings(&self, inner: &Fields) -> Result<f64> {
        let key = "original_max_position_embeddings";
        let (around, inside) = (self.fields.optional_positive(key)?, inner.optional_positive(key)?);
        let (given, usual) = match self.defaults.original_max_position_embeddings {
            Some(usual) => (around, usual),
            None if self.is_of_kind => (inside, self.defaults.max_position_embeddings),
            None => (around.or(inside), self.defaults.max_position_embeddings),
        };
        Ok(given.unwrap_or(usual as f64))
    }

    fn llama3(&self, inner: &Fields) -> Result<RopeScaling> {
        let low = inner.optional_positive("low_freq_factor")?.unwrap_or(1.0);
        let high = inner.optional_positive("high_freq_factor")?.unwrap_or(4.0);
        if high <= low {
            return Err(inner.error("high_freq_factor", "must be above low_freq_factor"));
        }
        Ok(RopeScaling::Llama3 {
            factor: inner.positive("factor")?,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: self.original_max_position_embeddings(inner)?,
        })
    }

    fn yarn(&self, inner: &Fields) -> Result<(RopeScaling, Option<f64>)> {
        let original_max_position_embeddings = self.original_max_position_embeddings(inner)?;
        let factor = inner.optional_positive("factor")?;
        let factor =
            factor.unwrap_or(self.defaults.max_position_embeddings as f64 / original_max_position_embeddings);
        let scaling = RopeScaling::Yarn {
            factor,
            fast: inner.optional_positive("beta_fast")?.unwrap_or(32.0),
            slow: inner.optional_positive("beta_slow")?.unwrap_or(1.0),
            truncate: inner.optional_flag("truncate")?.unwrap_or(true),
            original_max_position_embeddings,
        };
        // This attention factor applies to both queries and keys.
        let sharpened = |by: f64| if factor > 1.0 { 0.1 * by * factor.ln() + 1.0 } else { 1.0 };
        let given = inner.optional_positive("attention_factor")?;
        let both = (inner.optional_number("mscale")?, inner.optional_number("mscale_all_dim")?);
        let attention_factor = match (given, both) {
            (Some(given), _) => given,
            (None, (Some(one), Some(all))) if one != 0.0 && all != 0.0 => sharpened(one) / sharpened(all),
            _ => sharpened(1.0),
        };
        Ok((scaling, Some(attention_factor)))
    }

    fn long(&self, inner: &Fields, pairs: usize) -> Result<(RopeScaling, Option<f64>)> {
        let original = self.original_max_position_embeddings(inner)?;
        let context = self.defaults.max_position_embeddings as f64;
        let factors = |key| {
            let factors = inner.numbers(key)?;
            if factors.len() != pairs || factors.iter().any(|&factor| factor <= 0.0) {
                let message =
                    format_args!("must be a list of {pairs} numbers above 0, one for each rotated pair");
                return Err(inner.error(key, message));
            }
            Ok(factors)
        };
        let (short, long) = (factors("short_factor")?, factors("long_factor")?);
        let factor = inner.optional_positive("factor")?.unwrap_or(context / original);
        let usual = if factor > 1.0 { (1.0 + factor.ln() / original.ln()).sqrt() } else { 1.0 };
        let attention_factor = inner.optional_positive("attention_factor")?.unwrap_or(usual);
        let original_max_position_embeddings = original as usize;
        Ok((RopeScaling::Long { short, long, original_max_position_embeddings }, Some(attention_factor)))
    }
}

/// Returns the key of the scaling type, which has two names.
fn kind_key(inner: &Fields) -> &'static str {
    if inner.has("rope_type") { "rope_type" } else { "type" }
}

/// Scales theta by a fixed `alpha`, as Hunyuan does for "dynamic".
fn scale_theta(config: &mut RopeConfig, inner: &Fields) -> Result<()> {
    let Some(alpha) = inner.optional_positive("alpha")? else { return Ok(()) };
    let width = config.dims as f64;
    if config.dims == 2 {
        return Err(inner.error("alpha", "needs heads of more than 2 dimensions"));
    }
    config.theta *= alpha.powf(width / (width - 2.0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    /// Returns the axes of 8 pairs, for a family with the default `usual`.
    fn axes(config: &serde_json::Value, usual: Option<MropeSection>) -> Result<Option<Vec<usize>>> {
        let fields = Fields::of(Path::new("config.json"), config.as_object().expect("an object").clone());
        let defaults = RopeDefaults {
            theta: 10_000.0,
            partial_rotary_factor: None,
            interleaved: false,
            max_position_embeddings: 1024,
            original_max_position_embeddings: None,
            has_dynamic_alpha: false,
            mrope_section: usual,
        };
        Ok(RopeConfig::read(&fields, 16, defaults)?.mrope_section.map(|section| section.axes(8)))
    }

    #[test]
    fn axes_take_turns_whatever_the_config_says_about_it() {
        let usual = Some(MropeSection::Interleaved([4, 2, 2]));
        let turns = Some(vec![0, 1, 2, 0, 1, 2, 0, 0]);
        for config in [
            json!({}),
            json!({"rope_scaling": {"rope_type": "default"}}),
            json!({"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}}),
            json!({"rope_parameters": {"mrope_section": [4, 2, 2], "mrope_interleaved": false}}),
        ] {
            assert_eq!(axes(&config, usual).expect("valid"), turns, "{config}");
            assert_eq!(axes(&config, None).expect("valid"), None, "{config}");
        }
        let other = json!({"rope_parameters": {"mrope_section": [6, 1, 1]}});
        assert_eq!(axes(&other, usual).expect("valid"), Some(vec![0, 1, 2, 0, 0, 0, 0, 0]));
        for wrong in [json!([1, 2]), json!([1, 2, 0.5]), json!([]), json!([1, 2, -1])] {
            let config = json!({"rope_parameters": {"mrope_section": wrong}});
            let error = axes(&config, usual).expect_err("no three counts").to_string();
            assert!(error.contains("rope_parameters.mrope_section must be three counts"), "{error}");
        }
    }
}
