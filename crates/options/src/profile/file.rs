//! The file of profiles.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use toml::{Spanned, Value};

use super::{Fault, Profile};

/// The maximum size of the file in bytes.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    #[serde(default)]
    profile: Vec<Spanned<BTreeMap<Spanned<String>, Spanned<Value>>>>,
}

/// Reads and checks the profiles of a file. An error names the file, the line and the key.
pub fn read_profiles(path: &Path) -> Result<Vec<Profile>, String> {
    let about = |reason: &dyn fmt::Display| format!("{}: {reason}", path.display());
    let text = mlx_files::read_model_file(path, MAX_BYTES).map_err(|error| about(&error))?;
    let text = text.ok_or_else(|| about(&"does not exist"))?;
    let text = String::from_utf8(text).map_err(|_| about(&"is not UTF-8"))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut profiles = parse(&text).map_err(|reason| about(&reason))?;
    for profile in &mut profiles {
        profile.locate(folder);
    }
    Ok(profiles)
}

fn parse(text: &str) -> Result<Vec<Profile>, String> {
    let line = |at: usize| 1 + text.get(..at).unwrap_or_default().matches('\n').count();
    let file: ProfileFile = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or_else(String::new, |span| format!("line {}: ", line(span.start)));
        format!("{place}{}", error.message().replace('\n', ", "))
    })?;
    let mut profiles: Vec<Profile> = Vec::new();
    for table in file.profile {
        let begin = table.span().start;
        let mut entries: Vec<_> = table.into_inner().into_iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let lines: BTreeMap<String, usize> =
            entries.iter().map(|(key, _)| (key.get_ref().clone(), line(key.span().start))).collect();
        let line_of = |key: &str| lines.get(key).copied().unwrap_or_else(|| line(begin));
        let entries = entries.into_iter().map(|(key, value)| (key.into_inner(), value.into_inner()));
        let profile = Profile::read(entries)
            .map_err(|Fault { key, reason }| format!("line {}: {key} {reason}", line_of(&key)))?;
        let line = line_of("name");
        if profiles.iter().any(|other| other.name == profile.name) {
            return Err(format!("line {line}: name {:?} is there twice; names must differ", profile.name));
        }
        profiles.push(Profile { line, ..profile });
    }
    Ok(profiles)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use chat_format::Thinking;
    use mlx_core::chat::ContextPolicy;
    use mlx_core::engine::RequestOptions;
    use mlx_core::sampling::PARAMETERS;
    use proptest::prelude::*;

    use super::*;

    const WHOLE: &str = r#"
# Reviews code.
[[profile]]
name = "review"
model = "org/name"
adapter = "~/adapters/review"
system = """
Be strict.
Be brief."""
think = "off"
think-budget = 50
context-policy = "slide"
max-tokens = 100
stop = ["END", "\n\n"]
seed = 7
temperature = 0.1
top-k = 40
penalty-last-n = -1
logit-bias = { 15043 = -2.5, 7 = -inf }
dry-sequence-breaker = []

[[profile]]
name = "other"
model = "guide"
temperature = 1
"#;

    #[test]
    fn every_key_is_read() {
        let [review, other] = <[Profile; 2]>::try_from(parse(WHOLE).expect("valid")).expect("two");
        assert_eq!((review.name.as_str(), review.model.as_str()), ("review", "org/name"));
        assert_eq!(review.system.as_deref(), Some("Be strict.\nBe brief."));
        assert_eq!((review.think, review.think_budget), (Some(Thinking::Off), Some(50)));
        assert_eq!((review.context_policy, review.max_tokens), (Some(ContextPolicy::Slide), Some(100)));
        assert_eq!(review.stop, ["END", "\n\n"]);
        let sampling = &review.sampling;
        assert_eq!((sampling.seed, sampling.top_k, sampling.penalty_last_n), (Some(7), Some(40), Some(-1)));
        assert_eq!(sampling.temperature, Some(0.1));
        assert_eq!(sampling.logit_bias, [(15043, -2.5), (7, f32::NEG_INFINITY)]);
        assert_eq!(sampling.dry_sequence_breakers, Some(Vec::new()));
        assert_eq!((other.sampling.temperature, other.system), (Some(1.0), None));
        for parameter in PARAMETERS {
            let text =
                format!("[[profile]]\nname = 'a'\nmodel = 'b'\n{} = {}", parameter.flag(), parameter.example);
            let read = parse(&text).expect("valid").remove(0);
            let value = parameter.get(&read.sampling).expect("it was given");
            assert!((value - parameter.example).abs() < 1e-6, "{}", parameter.name);
        }
        assert_eq!(parse("# none yet"), Ok(Vec::new()));
    }

    #[test]
    fn a_record_of_a_profile_is_the_same_profile() {
        for profile in parse(WHOLE).expect("valid") {
            let record = serde_json::to_string(&profile).expect("it has a form in JSON");
            let read: Profile = serde_json::from_str(&record).expect("the same form");
            assert_eq!(serde_json::to_string(&read).expect("the same form"), record);
            let options = |profile: &Profile| profile.over(RequestOptions::default());
            assert_eq!(options(&read), options(&profile));
            assert_eq!((read.system, read.think, read.name), (profile.system, profile.think, profile.name));
        }
        let error = serde_json::from_str::<Profile>(r#"{"name": "a", "model": "b", "top-p": 2}"#);
        assert_eq!(error.expect_err("too large").to_string(), "top-p is 2; it must be from 0 to 1");
    }

    #[test]
    fn mistakes_are_named_with_file_line_and_key() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("profiles.toml");
        let head = "[[profile]]\nname = 'a'\nmodel = 'b'\n";
        for (text, expected) in [
            ("top-p = 2", "line 4: top-p is 2; it must be from 0 to 1"),
            ("\ntemperature = 'hot'", "line 5: temperature is \"hot\"; it must be a number"),
            ("temperature = nan", "line 4: temperature is NaN; it must be 0 or more"),
            ("top-k = 1.5", "line 4: top-k is 1.5; it must be a non-negative integer"),
            ("top_p = 1", "line 4: top_p is no key of a profile; did you mean top-p?"),
            ("mood = 1", "line 4: mood is no key of a profile; the keys are name, model,"),
            ("think = 5", "line 4: think is 5; it must be on, off, auto, low, medium or high"),
            ("think-budget = -1", "line 4: think-budget is -1; it must be a whole number of at least 0"),
            (
                "context-policy = 'x'",
                "line 4: context-policy is \"x\"; it must be evict-turns, slide or stop",
            ),
            ("max-tokens = 0", "line 4: max-tokens is 0; it must be a whole number of at least 1"),
            ("stop = 'a'", "line 4: stop is \"a\"; it must be a list of texts"),
            ("stop = ['']", "line 4: stop "),
            ("system = ' '", "line 4: system is \" \"; it must be a text"),
            ("logit-bias = { a = 1 }", "line 4: logit-bias is "),
            ("seed = -1", "line 4: seed is -1"),
            ("top-p = 1\ntop-p = 1", "line 5: duplicate key"),
            ("top-p = ", "line 4: "),
            ("[[profile]]\nmodel = 'x'", "line 4: name is missing"),
            ("[[profile]]\nname = 'x'", "line 4: model is missing"),
            ("[[profile]]\nmodel = 'x'\nname = 'a'", "line 6: name \"a\" is there twice"),
            ("[[profile]]\nmodel = 'x'\nname = 'a:latest'", "line 6: name is "),
            ("[other]\nx = 1", "line 4: unknown field `other`, expected `profile`"),
        ] {
            std::fs::write(&path, format!("{head}{text}\n")).expect("it can be written");
            let error = read_profiles(&path).expect_err(expected);
            let (file, reason) = error.split_once("profiles.toml: ").expect("it names the file");
            assert!(folder.path().to_str() == Some(file.trim_end_matches('/')), "{error}");
            assert!(reason.starts_with(expected), "{error}");
        }
        std::fs::remove_file(&path).expect("it exists");
        assert!(read_profiles(&path).expect_err("no file").ends_with("does not exist"));
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("model")).expect("a folder");
        let read = |model: &str, adapter: &str| {
            let path = folder.path().join("profiles.toml");
            let text = format!("[[profile]]\nname = 'a'\nmodel = '{model}'\nadapter = '{adapter}'\n");
            std::fs::write(&path, text).expect("it can be written");
            let profile = read_profiles(&path).expect("valid").remove(0);
            (PathBuf::from(profile.model), profile.adapter.expect("it was given"))
        };
        assert_eq!(read("model", "./x"), (folder.path().join("model"), folder.path().join("./x")));
        assert_eq!(read("org/name", "org/x"), (PathBuf::from("org/name"), PathBuf::from("org/x")));
        let home = std::env::home_dir().expect("the tests run as someone");
        assert_eq!(read("/m", "~/x"), (PathBuf::from("/m"), home.join("x")));
    }

    proptest! {
        /// A mistake is reported with its own line, wherever it is.
        #[test]
        fn the_line_is_that_of_the_mistake(count in 1usize..6, at in 0usize..6, blank in 0usize..4) {
            let at = at % count;
            let (mut text, mut expected) = (String::new(), 0);
            for index in 0..count {
                text += &"\n".repeat(blank);
                text.push_str(&["[[profile]]\nname = 'p", &index.to_string(), "'\nmodel = 'm'\n"].concat());
                text.push_str("system = '''\na\nb'''\n");
                text += if index == at { "top-p = 7\n" } else { "top-p = 0.7\n" };
                if index == at {
                    expected = text.lines().count();
                }
            }
            let error = parse(&text).expect_err("a mistake");
            prop_assert_eq!(error, format!("line {expected}: top-p is 7; it must be from 0 to 1"));
        }

        /// No text makes the reader panic, and every error of a changed file has one line.
        #[test]
        fn damaged_files_are_one_line_errors(at in 0usize..WHOLE.len(), with in "\\PC{0,3}") {
            let mut text = WHOLE.to_owned();
            // It is ASCII.
            text.replace_range(at..=at, &with);
            if let Err(error) = parse(&text) {
                prop_assert!(!error.contains('\n'), "{}", error);
            }
        }
    }
}
