//! The models on this machine: in the Hub cache, in LM Studio's folder and in Ollama's store. Invariant: only the Hub
//! cache is ever changed.

mod lm_studio;
mod ollama;

use std::path::{Path, PathBuf};

use super::cache::Cache;
use super::contents;
use super::env_path::path_in;
use super::list::CachedModel;
use super::local_model::{LocalModel, Revision, Store};
use super::local_name::LocalName;
use super::repo;
use crate::error::{Error, Result};

/// All stores of this machine.
#[derive(Debug, Clone)]
pub struct Stores {
    hub: Cache,
    lm_studio: Option<PathBuf>,
    ollama: Option<PathBuf>,
}

impl Stores {
    /// Locates the stores from the environment and from the files of their programs. Missing stores count as empty.
    pub fn from_env() -> Result<Self> {
        let home = std::env::home_dir();
        let ollama = path_in("OLLAMA_MODELS").or_else(|| Some(home.as_ref()?.join(".ollama/models")));
        Ok(Self { hub: Cache::from_env()?, lm_studio: home.as_deref().and_then(lm_studio::folder), ollama })
    }

    /// The Hub cache.
    pub fn hub(&self) -> &Cache {
        &self.hub
    }

    /// Returns all models by store and name.
    pub fn list(&self) -> Result<Vec<LocalModel>> {
        let mut models: Vec<LocalModel> = self.hub.list()?.iter().flat_map(of_cache).collect();
        models.extend(self.lm_studio.iter().flat_map(|root| lm_studio::list(root)));
        models.extend(self.ollama.iter().flat_map(|root| ollama::list(root)));
        Ok(models)
    }

    /// Returns the path of a model by name: a folder or a GGUF file. The Hub cache takes precedence, then LM Studio's
    /// folder. If a model is incomplete in one store, the next one is searched.
    pub fn find(&self, text: &str) -> Result<PathBuf> {
        let name = LocalName::new(text);
        let mut first = None;
        for found in
            [self.in_hub(&name), self.in_lm_studio(&name), self.in_ollama(&name)].into_iter().flatten()
        {
            match found {
                Ok(path) => return Ok(path),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| absent(&name)))
    }

    /// Returns true if a store has a model of this name, complete or not.
    pub fn has(&self, text: &str) -> bool {
        self.in_hub(&LocalName::new(text)).is_some() || self.foreign_store(text).is_some()
    }

    /// Returns the store of a model that this program does not change; `None` if no such store has it.
    pub fn foreign_store(&self, text: &str) -> Option<Store> {
        let name = LocalName::new(text);
        let lm_studio = self.in_lm_studio(&name).map(|_| Store::LmStudio);
        lm_studio.or_else(|| self.in_ollama(&name).map(|_| Store::Ollama))
    }

    fn in_hub(&self, name: &LocalName) -> Option<Result<PathBuf>> {
        let folder = self.hub.snapshot(name.hub.as_ref()?).transpose()?;
        Some(folder.and_then(|folder| Ok(contents::chosen(name, name.file, &folder, Store::Hub)?.path)))
    }

    fn in_lm_studio(&self, name: &LocalName) -> Option<Result<PathBuf>> {
        lm_studio::find(self.lm_studio.as_deref()?, name)
    }

    fn in_ollama(&self, name: &LocalName) -> Option<Result<PathBuf>> {
        ollama::find(self.ollama.as_deref()?, name.text)
    }
}

/// Returns the name of the model at this path, if a store has it.
pub fn name_of(path: &Path) -> Option<String> {
    let root = std::env::home_dir().and_then(|home| lm_studio::folder(&home));
    name_at(path, root.as_deref())
}

fn name_at(path: &Path, lm_studio: Option<&Path>) -> Option<String> {
    let of_folder =
        |folder: &Path| repo::name_of_snapshot(folder).or_else(|| lm_studio::name_of(lm_studio?, folder));
    if path.is_dir() {
        return of_folder(path);
    }
    // A GGUF file lies in the model's folder or in a subfolder.
    let of_file = |folder: &Path| {
        let name = of_folder(folder)?;
        let models = contents::models(folder);
        models.iter().find(|content| content.path == path).map(|content| content.name_in(&name))
    };
    ollama::name_of(path).or_else(|| path.ancestors().skip(1).take(2).find_map(of_file))
}

/// Returns the models in a snapshot of the Hub cache.
fn of_cache(model: &CachedModel) -> Vec<LocalModel> {
    let local = |content: contents::Content| LocalModel {
        name: content.name_in(&model.name),
        store: Store::Hub,
        bytes: content.bytes,
        modified: model.modified,
        problem: (!content.missing.is_empty())
            .then(|| format!("{} is missing; `mlx pull` downloads it", content.missing.join(", "))),
        path: content.path,
        revision: Some(Revision { commit: model.commit.clone(), references: model.references.clone() }),
    };
    contents::models(&model.folder).into_iter().map(local).collect()
}

fn absent(name: &LocalName) -> Error {
    if name.hub.is_none() {
        return Error::not_a_model(Path::new(name.text));
    }
    Error::not_downloaded(name, "no such folder, and no such model on this machine")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const COMMIT: &str = "1111111111111111111111111111111111111111";
    const BLOB: &str = "2222222222222222222222222222222222222222222222222222222222222222";

    fn snapshot(repo: &str) -> String {
        format!("hub/models--{repo}/snapshots/{COMMIT}")
    }

    /// Three stores in a temporary folder.
    struct Setup {
        root: tempfile::TempDir,
        stores: Stores,
    }

    impl Setup {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("a temporary folder");
            let at = |name: &str| root.path().join(name);
            let stores =
                Stores { hub: Cache::at(at("hub")), lm_studio: Some(at("lm")), ollama: Some(at("ollama")) };
            let setup = Self { root, stores };
            setup.put_safetensors(&snapshot("org--both"));
            setup.put_safetensors(&snapshot("org--cached"));
            setup.put("config.json", &snapshot("org--half"));
            for file in ["m-Q8_0.gguf", "m-Q4_K_M.gguf"] {
                setup.put(file, &snapshot("org--gguf"));
            }
            for folder in ["lm/org/both", "lm/org/half", "lm/studio/mlx"] {
                setup.put_safetensors(folder);
            }
            setup.put("config.json", "lm/studio/half");
            for file in ["m-Q6_K.gguf", "m-Q4_0.gguf", "mmproj-m.gguf"] {
                setup.put(file, "lm/org/gguf");
            }
            setup.put("only.gguf", "lm/studio/one");
            let manifest = format!(
                r#"{{"layers": [{{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:{BLOB}"}}]}}"#
            );
            for name in ["registry.ollama.ai/library/llama3.2/latest", "registry.ollama.ai/studio/mlx/latest"]
            {
                setup.write(&format!("ollama/manifests/{name}"), &manifest);
            }
            setup.write(&format!("ollama/blobs/sha256-{BLOB}"), "GGUF");
            setup
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.root.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("writes");
            fs::write(path, text).expect("writes");
        }

        fn put(&self, file: &str, folder: &str) {
            self.write(&format!("{folder}/{file}"), "GGUF");
        }

        fn put_safetensors(&self, folder: &str) {
            for file in ["config.json", "tokenizer.json", "model.safetensors"] {
                self.put(file, folder);
            }
        }
    }

    #[test]
    fn a_name_finds_its_model_in_the_first_store_that_has_all_of_it() {
        let setup = Setup::new();
        for (name, expected) in [
            ("org/both", &*snapshot("org--both")),
            ("org/both@1111111", &*snapshot("org--both")),
            ("https://huggingface.co/org/cached", &*snapshot("org--cached")),
            ("org/half", "lm/org/half"),
            ("studio/mlx", "lm/studio/mlx"),
            ("studio/mlx:latest", &format!("ollama/blobs/sha256-{BLOB}")),
            ("org/gguf", &(snapshot("org--gguf") + "/m-Q4_K_M.gguf")),
            ("org/gguf:q8_0", &(snapshot("org--gguf") + "/m-Q8_0.gguf")),
            ("org/gguf@1111111:Q8_0", &(snapshot("org--gguf") + "/m-Q8_0.gguf")),
            ("hf.co/org/gguf:Q4_0", "lm/org/gguf/m-Q4_0.gguf"),
            ("org/gguf:m-Q6_K.gguf", "lm/org/gguf/m-Q6_K.gguf"),
            ("org/gguf/m-Q6_K.gguf", "lm/org/gguf/m-Q6_K.gguf"),
            ("studio/one", "lm/studio/one/only.gguf"),
            ("studio/one:only", "lm/studio/one/only.gguf"),
            ("llama3.2", &format!("ollama/blobs/sha256-{BLOB}")),
            ("llama3.2:latest", &format!("ollama/blobs/sha256-{BLOB}")),
        ] {
            let found = setup.stores.find(name).expect(name);
            assert_eq!(found, setup.root.path().join(expected), "{name}");
        }
    }

    #[test]
    fn a_name_without_a_complete_model_is_an_error() {
        let setup = Setup::new();
        for (name, words) in [
            ("org/none", "no such model on this machine"),
            ("llama3.2:3b", "no such model on this machine"),
            ("org/both@2222222", "this revision is not in the cache"),
            (
                "studio/half",
                "is incomplete in LM Studio's folder: tokenizer.json, model.safetensors is missing",
            ),
            ("org/gguf:Q2_K", "\"Q2_K\" is not in the cache, which has Q4_K_M, Q8_0"),
            ("org/cached:Q4_0", "which has no GGUF file"),
            ("../lm/org/both", "is not a model"),
            ("org/../org/both", "is not a model"),
            ("org/..", "is not a model"),
            ("/org/both", "is not a model"),
            ("org both", "is not a model"),
            ("org/both:../x", "is not a model"),
            ("", "is not a model"),
        ] {
            let message = setup.stores.find(name).expect_err(name).to_string();
            assert!(message.contains(words), "{name}: {message}");
        }
        let nothing = Stores { hub: Cache::at("/nowhere"), lm_studio: None, ollama: None };
        assert!(nothing.list().expect("none").is_empty());
        assert!(
            matches!(nothing.find("org/both"), Err(Error::NotDownloaded { name, .. }) if name == "org/both")
        );
    }

    #[test]
    fn every_listed_name_leads_to_its_path_and_back() {
        let setup = Setup::new();
        let listed = setup.stores.list().expect("a list");
        let short: Vec<_> =
            listed.iter().map(|model| (&*model.name, model.store.id(), model.problem.is_none())).collect();
        let expected = [
            ("org/both", "hub", true),
            ("org/cached", "hub", true),
            ("org/gguf:Q4_K_M", "hub", true),
            ("org/gguf:Q8_0", "hub", true),
            ("org/half", "hub", false),
            ("org/both", "lmstudio", true),
            ("org/gguf:Q4_0", "lmstudio", true),
            ("org/gguf:Q6_K", "lmstudio", true),
            ("org/half", "lmstudio", true),
            ("studio/half", "lmstudio", false),
            ("studio/mlx", "lmstudio", true),
            ("studio/one:only", "lmstudio", true),
            ("llama3.2:latest", "ollama", true),
            ("studio/mlx:latest", "ollama", true),
        ];
        assert_eq!(short, expected);
        let root = setup.root.path().join("lm");
        for model in listed.iter().filter(|model| model.problem.is_none() && model.name != "org/both") {
            assert_eq!(setup.stores.find(&model.name).expect(&model.name), model.path);
            // Two names share a blob; the first one is shown.
            let shown = model.name.replace("studio/mlx:latest", "llama3.2:latest");
            assert_eq!(name_at(&model.path, Some(&root)), Some(shown));
        }
        assert_eq!(name_at(&setup.root.path().join("lm/org"), Some(&root)), None);
    }

    #[test]
    fn other_stores_own_their_models() {
        let setup = Setup::new();
        for (name, store) in [
            ("org/cached", None),
            ("org/none", None),
            ("org/both", Some(Store::LmStudio)),
            ("studio/half", Some(Store::LmStudio)),
            ("org/gguf:Q6_K", Some(Store::LmStudio)),
            ("llama3.2", Some(Store::Ollama)),
        ] {
            assert_eq!(setup.stores.foreign_store(name), store, "{name}");
            assert_eq!(setup.stores.has(name), name != "org/none", "{name}");
        }
    }
}
