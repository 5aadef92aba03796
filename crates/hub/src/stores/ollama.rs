//! Ollama's store: manifests by name, which list blobs by digest. The weights are one GGUF blob. Invariant: the store
//! is only read, and a digest cannot name a file outside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mlx_files::Fields;

use crate::error::{Error, Result};
use crate::local_model::{LocalModel, Store};
use crate::repo::names_in;

const DEFAULT_HOST: &str = "registry.ollama.ai";
const DEFAULT_NAMESPACE: &str = "library";
const DEFAULT_TAG: &str = "latest";
/// The media type of the weights.
const MODEL: &str = "application/vnd.ollama.image.model";
/// The media type of a LoRA adapter, which Ollama applies to the weights.
const ADAPTER: &str = "application/vnd.ollama.image.adapter";
const BLOBS: &str = "blobs";
/// The hexadecimal digits of a digest.
const DIGEST_DIGITS: usize = 64;

/// Host, namespace, model and tag.
type Name = [String; 4];

/// Returns the models, sorted by name. Damaged manifests and models without a GGUF file are skipped.
pub(super) fn list(root: &Path) -> Vec<LocalModel> {
    names(root).iter().filter_map(|name| model(root, name).ok().flatten()).collect()
}

/// Returns the path of a model's blob; `None` if there is no such model.
pub(super) fn find(root: &Path, text: &str) -> Option<Result<PathBuf>> {
    let wanted = parse(text)?;
    // Ollama ignores the case of names.
    let is_wanted =
        |name: &&Name| name.iter().zip(&wanted).all(|(own, other)| own.eq_ignore_ascii_case(other));
    let names = names(root);
    let name = names.iter().find(is_wanted)?;
    Some(match model(root, name) {
        Ok(Some(LocalModel { path, problem: None, .. })) => Ok(path),
        Ok(Some(LocalModel { name, problem: Some(problem), .. })) => Err(Error::hub(&name, problem)),
        Ok(None) => Err(Error::hub(&shown(name), "is in Ollama's store, but not as a GGUF file")),
        Err(error) => Err(error),
    })
}

/// Returns the first name of the model with this blob; `None` for files elsewhere.
pub(super) fn name_of(blob: &Path) -> Option<String> {
    let folder = blob.parent().filter(|folder| folder.ends_with(BLOBS))?;
    let models = list(folder.parent()?);
    models.into_iter().find(|model| model.path.file_name() == blob.file_name()).map(|model| model.name)
}

/// Reads a manifest. Returns `None` if it names no weights in a GGUF file.
fn model(root: &Path, name: &Name) -> Result<Option<LocalModel>> {
    let path = name.iter().fold(root.join("manifests"), |folder, part| folder.join(part));
    let manifest: Fields<Error> = Fields::read(&path)?;
    let layers = manifest.get("layers").and_then(|layers| layers.as_array()).map_or(&[][..], Vec::as_slice);
    let layer =
        |kind: &str| layers.iter().find(|layer| layer.get("mediaType").is_some_and(|own| own == kind));
    let Some(weights) = layer(MODEL) else { return Ok(None) };
    let digest = weights.get("digest").and_then(|digest| digest.as_str()).unwrap_or_default();
    let file = blob_name(digest).ok_or_else(|| {
        manifest.error("layers", format_args!("has the digest {digest:?}, which is not sha256:HEX"))
    })?;
    let blob = root.join(BLOBS).join(file);
    let name = shown(name);
    let problem = match fs::metadata(&blob) {
        Ok(found) if !found.is_file() => Some("its blob is not a file".to_owned()),
        Err(_) => Some(format!("its blob is missing; `ollama pull {name}` downloads it")),
        Ok(_) if layer(ADAPTER).is_some() => {
            Some("has an adapter in Ollama's store, which this program does not apply".to_owned())
        }
        Ok(_) => None,
    };
    let modified = fs::metadata(&path).and_then(|manifest| manifest.modified());
    Ok(Some(LocalModel {
        name,
        store: Store::Ollama,
        bytes: fs::metadata(&blob).map_or(0, |blob| blob.len()),
        modified: modified.unwrap_or(SystemTime::UNIX_EPOCH),
        path: blob,
        problem,
        revision: None,
    }))
}

/// Returns the names of all manifests, sorted.
fn names(root: &Path) -> Vec<Name> {
    let mut found: Vec<Vec<String>> = vec![Vec::new()];
    for _ in 0..4 {
        let children = |parts: Vec<String>| {
            let folder = parts.iter().fold(root.join("manifests"), |folder, part| folder.join(part));
            let names = names_in(&folder).unwrap_or_default().into_iter();
            let visible = names.filter(|name| !name.starts_with('.'));
            visible.map(move |name| [parts.as_slice(), &[name]].concat()).collect::<Vec<_>>()
        };
        found = found.into_iter().flat_map(children).collect();
    }
    found.into_iter().filter_map(|parts| parts.try_into().ok()).collect()
}

/// Parses `[HOST/][NAMESPACE/]MODEL[:TAG]`.
fn parse(text: &str) -> Option<Name> {
    let text = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let tagged = text.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'));
    let (path, tag) = tagged.unwrap_or((text, DEFAULT_TAG));
    let parts: Vec<&str> = path.split('/').collect();
    let [host, namespace, model] = match parts[..] {
        [model] => [DEFAULT_HOST, DEFAULT_NAMESPACE, model],
        [namespace, model] => [DEFAULT_HOST, namespace, model],
        [host, namespace, model] => [host, namespace, model],
        _ => return None,
    };
    Some([host, namespace, model, tag].map(str::to_owned))
}

/// Returns the name as `ollama list` shows it.
fn shown([host, namespace, model, tag]: &Name) -> String {
    match (&**host, &**namespace) {
        (DEFAULT_HOST, DEFAULT_NAMESPACE) => format!("{model}:{tag}"),
        (DEFAULT_HOST, _) => format!("{namespace}/{model}:{tag}"),
        _ => format!("{host}/{namespace}/{model}:{tag}"),
    }
}

/// Returns the file name of the blob with this digest.
fn blob_name(digest: &str) -> Option<String> {
    let digits = digest.strip_prefix("sha256:").or_else(|| digest.strip_prefix("sha256-"))?;
    let is_hex = digits.len() == DIGEST_DIGITS && digits.chars().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| format!("sha256-{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "1111111111111111111111111111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222222222222222222222222222";

    fn manifest(kinds: &[&str], digest: &str) -> String {
        let layer = |kind: &&str| {
            format!(r#"{{"mediaType": "application/vnd.ollama.image.{kind}", "digest": "{digest}"}}"#)
        };
        format!(r#"{{"layers": [{}]}}"#, kinds.iter().map(layer).collect::<Vec<_>>().join(", "))
    }

    /// A store with one blob.
    fn store(manifests: &[(&str, String)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        let files = manifests.iter().map(|(name, text)| (format!("manifests/{name}"), text.clone()));
        for (file, text) in files.chain([(format!("blobs/sha256-{ONE}"), "GGUF".to_owned())]) {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("writes");
            fs::write(path, text).expect("writes");
        }
        root
    }

    fn full() -> tempfile::TempDir {
        let one = format!("sha256:{ONE}");
        let whole = || manifest(&["template", "model", "license"], &one);
        store(&[
            ("registry.ollama.ai/library/llama3.2/latest", whole()),
            ("registry.ollama.ai/library/llama3.2/3b", whole()),
            ("registry.ollama.ai/user/mine/v1", whole()),
            ("hf.co/Org/Name-GGUF/Q8_0", whole()),
            ("registry.ollama.ai/library/pulled/half", manifest(&["model"], &format!("sha256:{TWO}"))),
            ("registry.ollama.ai/library/tuned/latest", manifest(&["model", "adapter"], &one)),
            ("registry.ollama.ai/library/cloud/latest", manifest(&["license"], &one)),
            ("registry.ollama.ai/library/cut/latest", r#"{"layers": ["#.to_owned()),
            ("registry.ollama.ai/library/list/latest", "[]".to_owned()),
            ("registry.ollama.ai/library/odd/latest", r#"{"layers": 1}"#.to_owned()),
            ("registry.ollama.ai/library/out/latest", manifest(&["model"], "sha256:../../../secret")),
            (
                "registry.ollama.ai/library/none/latest",
                r#"{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}"#.to_owned(),
            ),
            ("registry.ollama.ai/library/.DS_Store", String::new()),
        ])
    }

    #[test]
    fn models_with_a_gguf_blob_are_listed() {
        let root = full();
        let listed = list(root.path());
        let listed: Vec<_> =
            listed.iter().map(|model| (&*model.name, model.bytes, model.problem.is_none())).collect();
        let expected = [
            ("hf.co/Org/Name-GGUF:Q8_0", 4, true),
            ("llama3.2:3b", 4, true),
            ("llama3.2:latest", 4, true),
            ("pulled:half", 0, false),
            ("tuned:latest", 4, false),
            ("user/mine:v1", 4, true),
        ];
        assert_eq!(listed, expected);
        assert!(list(&root.path().join("gone")).is_empty());
        let blob = root.path().join(format!("blobs/sha256-{ONE}"));
        assert_eq!(name_of(&blob).as_deref(), Some("hf.co/Org/Name-GGUF:Q8_0"));
        assert_eq!(name_of(root.path()), None);
    }

    #[test]
    fn a_name_finds_its_blob_or_an_error_names_the_cause() {
        let root = full();
        let blob = root.path().join(format!("blobs/sha256-{ONE}"));
        for name in [
            "llama3.2",
            "llama3.2:3b",
            "LLAMA3.2:latest",
            "library/llama3.2",
            "registry.ollama.ai/library/llama3.2:3b",
            "user/mine:v1",
            "hf.co/org/name-gguf:q8_0",
            "https://hf.co/Org/Name-GGUF:Q8_0",
        ] {
            assert_eq!(find(root.path(), name).expect(name).expect(name), blob);
        }
        for name in
            ["llama3.2:1b", "user/mine", "mine:v1", "..", "../library/llama3.2", "a/b/c/d", "", ":", "/"]
        {
            assert!(find(root.path(), name).is_none(), "{name}");
        }
        for (name, words) in [
            ("pulled:half", "ollama pull pulled:half"),
            ("tuned", "adapter"),
            ("cloud", "not as a GGUF file"),
            ("cut", "library/cut/latest: is not valid JSON"),
            ("list", "is not a JSON object"),
            ("odd", "not as a GGUF file"),
            ("out", "../../../secret"),
            ("none", "sha256:HEX"),
        ] {
            let message = find(root.path(), name).expect(name).expect_err(name).to_string();
            assert!(message.contains(words), "{name}: {message}");
        }
    }

    #[test]
    fn a_broken_or_circular_link_is_no_model() {
        let root = full();
        let folder = root.path().join("manifests/registry.ollama.ai/library");
        std::os::unix::fs::symlink("gone", folder.join("llama3.2/broken")).expect("links");
        std::os::unix::fs::symlink(&folder, folder.join("circle")).expect("links");
        std::os::unix::fs::symlink("loop", folder.join("llama3.2/loop")).expect("links");
        assert_eq!(list(root.path()).len(), 6);
        assert!(find(root.path(), "llama3.2:broken").expect("it is named").is_err());
    }
}
