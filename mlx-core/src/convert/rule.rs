//! Rules for the quantization of single modules. Invariant: pure.

use std::str::FromStr;

use crate::quantization::{Mode, QuantScheme};

/// A pattern of module names and the quantization of these modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The original text.
    text: String,
    /// The pattern: `*` matches any text and `?` any single character.
    pattern: String,
    choice: Choice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Keep,
    Affine { bits: usize, group: Option<usize> },
}

/// The default rules of mlx-lm for some families: routers, and weights that would underflow.
const FAMILY_RULES: [(&str, &[&str]); 31] = [
    ("qwen3_moe", &["*mlp.gate=8:64"]),
    ("qwen3_5_moe", &["*mlp.gate=8:64", "*shared_expert_gate=8:64"]),
    ("qwen3_vl_moe", &["*mlp.gate=8:64"]),
    ("qwen3_next", &["*mlp.gate=8:64", "*shared_expert_gate=8:64"]),
    ("lfm2_moe", &["*feed_forward.gate=8:64"]),
    ("gemma4", &["*router.proj=8:64"]),
    ("gemma4_text", &["*router.proj=8:64"]),
    ("gemma4_unified", &["*router.proj=8:64"]),
    ("gpt_oss", &["*router=8:64"]),
    ("granite", &["*self_attn.o_proj=8:64", "*mlp.down_proj=8:64", "lm_head=8:64"]),
    ("granitemoe", &["*router.layer=8:64", "*self_attn.o_proj=8:64", "*mlp.down_proj=8:64", "lm_head=8:64"]),
    ("granitemoehybrid", &["*router.layer=8:64"]),
    ("kimi_linear", &["*mlp.gate=8:64"]),
    ("nemotron_h", &["*mixer.gate=keep"]),
    ("minimax", &["*block_sparse_moe.gate=8:64"]),
    ("minimax_m2", &["*block_sparse_moe.gate=8:64"]),
    ("deepseek_v2", &["*mlp.gate=keep"]),
    ("deepseek_v3", &["*mlp.gate=keep"]),
    ("kimi_k2", &["*mlp.gate=keep"]),
    ("joyai_llm_flash", &["*mlp.gate=keep"]),
    ("kimi_k25", &["*mlp.gate=keep"]),
    ("kimi_vl", &["*mlp.gate=keep"]),
    ("solar_open", &["*mlp.gate=keep"]),
    ("exaone_moe", &["*mlp.gate=keep"]),
    ("bailing_moe", &["*mlp.gate.gate_proj=8:64"]),
    ("laguna", &["*mlp.gate.proj=8:64"]),
    ("mellum", &["*mlp.gate=8:64"]),
    ("afmoe", &["*router.gate=8:64"]),
    ("dots1", &["*mlp.gate=keep"]),
    ("glm4_moe", &["*mlp.gate=keep"]),
    ("glm4_moe_lite", &["*mlp.gate=keep"]),
];

/// The name prefixes of tower modules in mlx-vlm.
const TOWERS: [&str; 6] = [
    "vision_tower.",
    "multi_modal_projector.",
    "vision_embedder.",
    "embed_vision.",
    "audio_tower.",
    "embed_audio.",
];

impl FromStr for Rule {
    type Err = String;

    /// Parses `PATTERN=BITS`, `PATTERN=BITS:GROUP` or `PATTERN=keep`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not a rule; use PATTERN=BITS, PATTERN=BITS:GROUP or PATTERN=keep, as in *.down_proj=6"
            )
        };
        let (pattern, choice) =
            text.rsplit_once('=').filter(|(pattern, _)| !pattern.is_empty()).ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
        let choice = match choice.split_once(':') {
            None if choice == "keep" => Choice::Keep,
            None => Choice::Affine { bits: number(choice)?, group: None },
            Some((bits, group)) => Choice::Affine { bits: number(bits)?, group: Some(number(group)?) },
        };
        if let Choice::Affine { bits, group } = choice {
            QuantScheme::new(Mode::Affine, Some(bits), group)
                .map_err(|(key, why)| format!("in {text:?}, {key} {why}"))?;
        }
        Ok(Self { text: text.to_owned(), pattern: pattern.to_owned(), choice })
    }
}

impl Rule {
    /// The default rules of mlx-lm for this family.
    pub(super) fn of_family(family: &str) -> Vec<Self> {
        let texts = FAMILY_RULES.iter().filter(|(name, _)| *name == family).flat_map(|(_, texts)| *texts);
        texts.filter_map(|text| text.parse().ok()).collect()
    }

    /// The original text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns true if the rule applies to `module`.
    pub(super) fn matches(&self, module: &str) -> bool {
        matches(self.pattern.as_bytes(), module.as_bytes())
    }

    /// Returns true if the pattern begins with the name of a tower. Without such a rule, towers are not quantized.
    pub(super) fn is_for_towers(&self) -> bool {
        let beginning = self.pattern.split(['*', '?']).next().unwrap_or_default();
        TOWERS.iter().any(|name| beginning.starts_with(name))
    }

    /// Returns the scheme of the rule's modules if the default is `default`; `None` keeps them unquantized.
    pub(super) fn scheme(&self, default: QuantScheme) -> Option<QuantScheme> {
        match self.choice {
            Choice::Keep => None,
            Choice::Affine { bits, group } => {
                let default = if default.mode == Mode::Affine { default.group_size } else { 64 };
                Some(QuantScheme { mode: Mode::Affine, bits, group_size: group.unwrap_or(default) })
            }
        }
    }
}

/// Returns true if the pattern matches the whole name. Only the last star backtracks, because everything before it matches as early as
/// possible. So the worst case is quadratic for any number of stars.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while read < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(&symbol) if symbol == b'?' || symbol == name[read] => (at, read) = (at + 1, read + 1),
            _ => {
                let Some((start, matched)) = star else { return false };
                star = Some((start, matched + 1));
                (at, read) = (start + 1, matched + 1);
            }
        }
    }
    pattern[at..].iter().all(|symbol| *symbol == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: QuantScheme = QuantScheme { mode: Mode::Affine, bits: 4, group_size: 32 };

    fn rule(text: &str) -> Rule {
        text.parse().expect("a good rule")
    }

    #[test]
    fn a_pattern_matches_the_complete_name() {
        let module = "model.layers.0.mlp.down_proj";
        for text in [
            "*.down_proj=6",
            "*=6",
            "model.layers.?.mlp.*=6",
            "model*0*proj=6",
            "model.layers.0.mlp.down_proj=6",
        ] {
            assert!(rule(text).matches(module), "{text}");
        }
        // Many stars are no slower than few.
        assert!(!rule("*a*a*a*a*a*a*a*a*a*a*b=6").matches(&"a".repeat(5000)));
        assert!(rule("**a*=6").matches("a") && rule("a**=6").matches("a") && !rule("?*=6").matches(""));
        for text in ["down_proj=6", "*.down=6", "model.layers.?=6", "*.layers.1.*=6"] {
            assert!(!rule(text).matches(module), "{text}");
        }
    }

    #[test]
    fn a_pattern_for_towers_begins_with_the_name_of_one() {
        let texts = ["vision_tower.*=8", "multi_modal_projector.linear_?=8", "embed_vision.*=keep"];
        assert!(texts.iter().all(|text| rule(text).is_for_towers()));
        let texts = ["*=8", "*.down_proj=6", "vision*=8", "language_model.*=8"];
        assert!(!texts.iter().any(|text| rule(text).is_for_towers()));
    }

    #[test]
    fn omitted_settings_have_defaults() {
        let scheme = |text: &str, default| rule(text).scheme(default).map(|it| (it.bits, it.group_size));
        let floats = QuantScheme { mode: Mode::Mxfp4, ..DEFAULT };
        assert_eq!(scheme("a=6", DEFAULT), Some((6, 32)));
        assert_eq!(scheme("a=6", floats), Some((6, 64)));
        assert_eq!(scheme("a=3:128", DEFAULT), Some((3, 128)));
        assert_eq!(scheme("a=keep", DEFAULT), None);
    }

    #[test]
    fn a_malformed_rule_is_refused() {
        for text in ["a", "=4", "a=", "a=7", "a=4:48", "a=4:", "a=many", "a=keep:32"] {
            text.parse::<Rule>().expect_err(text);
        }
        for (family, texts) in FAMILY_RULES {
            assert_eq!(Rule::of_family(family).len(), texts.len());
        }
    }
}
