//! LM Studio's folder of models: `ORG/NAME` with safetensors or GGUF files. Invariant: it is only read.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mlx_files::Fields;

use crate::contents;
use crate::env_path::expanded;
use crate::error::{Error, Result};
use crate::local_model::{LocalModel, Store};
use crate::local_name::LocalName;
use crate::name::ModelName;
use crate::repo::names_in;

/// Returns LM Studio's folder of models in the user's home folder, if it exists. A damaged settings file is ignored.
pub(super) fn folder(home: &Path) -> Option<PathBuf> {
    let data = data_folder(home)?;
    let settings: Option<Fields<Error>> = Fields::read(&data.join("settings.json")).ok();
    let chosen = settings.as_ref().and_then(|settings| settings.optional_text("downloadsFolder").ok()?);
    let chosen = chosen.map(|text| expanded(Path::new(text))).filter(|folder| folder.is_absolute());
    [chosen, Some(data.join("models"))].into_iter().flatten().find(|folder| folder.is_dir())
}

/// Returns the folder of LM Studio's data. The pointer file names it if the user moved it.
fn data_folder(home: &Path) -> Option<PathBuf> {
    let pointer = fs::read_to_string(home.join(".lmstudio-home-pointer")).ok();
    let moved = pointer.map(|text| expanded(Path::new(text.trim()))).filter(|folder| folder.is_absolute());
    // The last is the folder of old versions.
    let folders = [moved, Some(home.join(".lmstudio")), Some(home.join(".cache/lm-studio"))];
    folders.into_iter().flatten().find(|folder| folder.is_dir())
}

/// Returns the models, sorted by name. Folders without a model are skipped, and names that the Hub does not allow.
/// Links count as their targets: other programs link models into this folder.
pub(super) fn list(root: &Path) -> Vec<LocalModel> {
    names(root).iter().flat_map(|name| models(root, name)).collect()
}

/// Returns the path of a model; `None` if there is no such model.
pub(super) fn find(root: &Path, name: &LocalName) -> Option<Result<PathBuf>> {
    let hub = name.hub.as_ref().filter(|hub| !hub.has_revision() && hub.repo.contains('/'))?;
    let folder = root.join(&hub.repo);
    has_model(&folder).then(|| Ok(contents::chosen(name, name.file, &folder, Store::LmStudio)?.path))
}

/// Returns the name of the model in `folder`; `None` for folders elsewhere.
pub(super) fn name_of(root: &Path, folder: &Path) -> Option<String> {
    let (root, folder) = (root.canonicalize().ok()?, std::path::absolute(folder).ok()?);
    let own = folder.parent()?.parent()?.canonicalize().ok()?;
    let name = folder.strip_prefix(folder.parent()?.parent()?).ok()?.to_str()?;
    (own == root).then(|| name.to_owned())
}

fn names(root: &Path) -> Vec<String> {
    let children = |folder: &Path| names_in(folder).unwrap_or_default();
    let organizations = children(root).into_iter();
    let names = organizations.flat_map(|organization| {
        let folder = root.join(&organization);
        children(&folder).into_iter().map(move |name| format!("{organization}/{name}"))
    });
    names.filter(|name| name.parse::<ModelName>().is_ok_and(|parsed| parsed.repo == *name)).collect()
}

fn models(root: &Path, name: &str) -> Vec<LocalModel> {
    let folder = root.join(name);
    if !has_model(&folder) {
        return Vec::new();
    }
    let model = |content: contents::Content| LocalModel {
        name: content.name_in(name),
        store: Store::LmStudio,
        bytes: content.bytes,
        modified: modified(&content.path).or_else(|| modified(&folder)).unwrap_or(SystemTime::UNIX_EPOCH),
        problem: (!content.missing.is_empty())
            .then(|| format!("{} is missing; LM Studio downloads it", content.missing.join(", "))),
        path: content.path,
        revision: None,
    };
    contents::models(&folder).into_iter().map(model).collect()
}

fn has_model(folder: &Path) -> bool {
    folder.join("config.json").is_file() || contents::models(folder).iter().any(contents::Content::is_file)
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(files: &[(&str, &str)]) -> tempfile::TempDir {
        let home = tempfile::tempdir().expect("a temporary folder");
        for (file, text) in files {
            let path = home.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("writes");
            fs::write(path, text.replace("HOME", home.path().to_str().expect("utf-8"))).expect("writes");
        }
        home
    }

    #[test]
    fn the_folder_is_found_where_lm_studio_has_it() {
        let new = (".lmstudio/models/a/b/config.json", "");
        let old = (".cache/lm-studio/models/a/b/config.json", "");
        let own = ("own/a/b/config.json", "");
        let settings = ".lmstudio/settings.json";
        for (files, expected) in [
            (&[][..], None),
            (&[new, old], Some(".lmstudio/models")),
            (&[old], Some(".cache/lm-studio/models")),
            (&[(".lmstudio/settings.json", "{}"), old], None),
            (&[new, own, (settings, r#"{"downloadsFolder": "HOME/own"}"#)], Some("own")),
            (&[new, (settings, r#"{"downloadsFolder": "HOME/gone"}"#)], Some(".lmstudio/models")),
            (&[new, (settings, r#"{"downloadsFolder": "relative"}"#)], Some(".lmstudio/models")),
            (&[new, (settings, r#"{"downloadsFolder": 1}"#)], Some(".lmstudio/models")),
            (&[new, (settings, r#"{"downloadsFolder": null}"#)], Some(".lmstudio/models")),
            (&[new, (settings, "{\"downloadsFolder")], Some(".lmstudio/models")),
            (&[new, (settings, "")], Some(".lmstudio/models")),
            (
                &[new, ("moved/models/a/b/c", ""), (".lmstudio-home-pointer", "HOME/moved\n")],
                Some("moved/models"),
            ),
            (&[new, (".lmstudio-home-pointer", "HOME/gone")], Some(".lmstudio/models")),
            (&[new, (".lmstudio-home-pointer", "")], Some(".lmstudio/models")),
        ] {
            let home = home(files);
            let expected = expected.map(|path| home.path().join(path));
            assert_eq!(folder(home.path()), expected, "{files:?}");
        }
    }

    #[test]
    fn models_are_listed_and_everything_else_is_skipped() {
        let home = home(&[
            ("org/mlx/config.json", "{}"),
            ("org/mlx/tokenizer.json", "{}"),
            ("org/mlx/model.safetensors", "12345678"),
            ("org/half/config.json", "{}"),
            ("org/gguf/m-Q4_K_M.gguf", "GGUF"),
            ("org/gguf/m-Q8_0.gguf", "GGUFGGUF"),
            ("org/gguf/mmproj-m.gguf", "GGUF"),
            ("org/tower/mmproj-m.gguf", "GGUF"),
            ("org/empty/downloading_m.gguf.part", ""),
            ("org/two words/config.json", "{}"),
            ("org/a..b/config.json", "{}"),
            (".hidden/name/config.json", "{}"),
            ("org/file", ""),
            (".DS_Store", ""),
        ]);
        let root = home.path();
        std::os::unix::fs::symlink("circle", root.join("org/circle")).expect("links");
        std::os::unix::fs::symlink("gone", root.join("org/broken")).expect("links");
        std::os::unix::fs::symlink(root.join("org/mlx"), root.join("org/shared")).expect("links");
        let listed = list(root);
        let listed: Vec<_> =
            listed.iter().map(|model| (&*model.name, model.bytes, model.problem.is_none())).collect();
        let expected = [
            ("org/gguf:Q4_K_M", 4, true),
            ("org/gguf:Q8_0", 8, true),
            ("org/half", 2, false),
            ("org/mlx", 12, true),
            ("org/shared", 12, true),
        ];
        assert_eq!(listed, expected);
        assert!(list(&root.join("gone")).is_empty() && list(&root.join("org/file")).is_empty());
        assert_eq!(name_of(root, &root.join("org/mlx")).as_deref(), Some("org/mlx"));
        assert_eq!(name_of(root, &root.join("org")), None);
        assert_eq!(name_of(root, Path::new("/")), None);
    }
}
