//! Rules that say how single modules are quantized. Invariant: pure.

use std::str::FromStr;

use crate::quantization::{Mode, QuantScheme};

/// Modules by a pattern, and what becomes of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// As it was written.
    text: String,
    /// A name in which `*` stands for any text and `?` for any one character.
    pattern: String,
    choice: Choice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Keep,
    Affine { bits: usize, group: Option<usize> },
}

/// What mlx-lm quantizes less than the rest, or in other groups, unless it is told otherwise: routers, and what underflows.
const HABITS: [(&str, &[&str]); 3] = [
    ("qwen3_moe", &["*mlp.gate=8:64"]),
    ("gpt_oss", &["*router=8:64"]),
    ("granite", &["*self_attn.o_proj=8:64", "*mlp.down_proj=8:64", "lm_head=8:64"]),
];

impl FromStr for Rule {
    type Err = String;

    /// `PATTERN=BITS`, `PATTERN=BITS:GROUP` or `PATTERN=keep`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no rule; it must be PATTERN=BITS, PATTERN=BITS:GROUP or PATTERN=keep, as in *.down_proj=6"
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
    /// What mlx-lm does for this family of its own accord.
    pub(super) fn habits(family: &str) -> Vec<Self> {
        let texts = HABITS.iter().filter(|(name, _)| *name == family).flat_map(|(_, texts)| *texts);
        texts.filter_map(|text| text.parse().ok()).collect()
    }

    /// As it was written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether it is about `module`.
    pub(super) fn matches(&self, module: &str) -> bool {
        matches(self.pattern.as_bytes(), module.as_bytes())
    }

    /// How its modules are packed, where the others are packed as `usual` says; not at all if none.
    pub(super) fn packing(&self, usual: QuantScheme) -> Option<QuantScheme> {
        match self.choice {
            Choice::Keep => None,
            Choice::Affine { bits, group } => {
                let usual = if usual.mode == Mode::Affine { usual.group_size } else { 64 };
                Some(QuantScheme { mode: Mode::Affine, bits, group_size: group.unwrap_or(usual) })
            }
        }
    }
}

/// Whether a pattern is a whole name. What the last star took is all that is ever taken back: whatever stands before it matches as
/// early as it can, so that no number of stars makes this slow.
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
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                (at, read) = (place + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|symbol| *symbol == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: QuantScheme = QuantScheme { mode: Mode::Affine, bits: 4, group_size: 32 };

    fn rule(text: &str) -> Rule {
        text.parse().expect("a good rule")
    }

    #[test]
    fn a_pattern_is_the_whole_name() {
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
        // Many stars take no longer than few.
        assert!(!rule("*a*a*a*a*a*a*a*a*a*a*b=6").matches(&"a".repeat(5000)));
        assert!(rule("**a*=6").matches("a") && rule("a**=6").matches("a") && !rule("?*=6").matches(""));
        for text in ["down_proj=6", "*.down=6", "model.layers.?=6", "*.layers.1.*=6"] {
            assert!(!rule(text).matches(module), "{text}");
        }
    }

    #[test]
    fn what_is_not_said_is_as_usual() {
        let packing = |text: &str, usual| rule(text).packing(usual).map(|it| (it.bits, it.group_size));
        let floats = QuantScheme { mode: Mode::Mxfp4, ..USUAL };
        assert_eq!(packing("a=6", USUAL), Some((6, 32)));
        assert_eq!(packing("a=6", floats), Some((6, 64)));
        assert_eq!(packing("a=3:128", USUAL), Some((3, 128)));
        assert_eq!(packing("a=keep", USUAL), None);
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in ["a", "=4", "a=", "a=7", "a=4:48", "a=4:", "a=many", "a=keep:32"] {
            text.parse::<Rule>().expect_err(text);
        }
        for (family, texts) in HABITS {
            assert_eq!(Rule::habits(family).len(), texts.len());
        }
    }
}
