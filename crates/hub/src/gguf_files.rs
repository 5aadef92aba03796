//! The GGUF models in a folder: one file each, or numbered shards, chosen by quantization.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The quantizations to choose without a request, in order of preference. llama.cpp prefers the first two.
const DEFAULTS: [&str; 3] = ["Q4_K_M", "Q4_0", "Q8_0"];
/// Float and block types whose names do not begin with Q, IQ or TQ.
const OTHER_TYPES: [&str; 7] = ["F16", "F32", "BF16", "FP16", "FP32", "MXFP4", "NVFP4"];
/// The prefix of Unsloth's dynamic quantizations.
const DYNAMIC: &str = "UD-";
/// The digits of a shard's number and of the count, as llama.cpp writes them.
const SHARD_DIGITS: usize = 5;
/// The maximum number of missing shards that a message names.
const MAX_NAMED: usize = 3;

/// A model in one GGUF file or in numbered shards.
#[derive(Debug, Clone)]
pub struct GgufModel {
    /// The quantization, such as `Q4_K_M`; the stem of the file if it names none or another file has the same.
    pub label: String,
    stem: String,
    /// The file, or the first shard.
    pub path: PathBuf,
    /// The existing files.
    pub files: Vec<PathBuf>,
    /// The total size of its files in bytes.
    pub bytes: u64,
    /// The names of the missing shards, at most three.
    pub missing: Vec<String>,
}

/// The shards of a model by number, with their sizes.
type Shards = BTreeMap<usize, (PathBuf, u64)>;

/// Returns true for a path that ends with `.gguf`.
pub fn has_gguf_extension(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Returns the name of the model in a GGUF file: the file's name without suffix and shard number.
pub fn gguf_name(file: &Path) -> Option<String> {
    if has_gguf_extension(file) { Some(shard(file)?.0) } else { None }
}

/// Returns true for the file of a vision tower (`mmproj`) or of calibration data (`imatrix`), which is not a model.
pub(crate) fn is_auxiliary(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    name.contains("mmproj") || name.starts_with("imatrix")
}

/// Returns the models in `folder`, sorted by path.
pub(crate) fn models(folder: &Path) -> Vec<GgufModel> {
    let mut models = gguf_models(files(folder));
    for model in &mut models {
        model.path = folder.join(&model.path);
        model.files.iter_mut().for_each(|file| *file = folder.join(&*file));
    }
    models
}

/// Returns the models among files, sorted by path. Each file has its path in the model's folder and its size. Files of
/// other kinds are skipped.
pub fn gguf_models(files: impl IntoIterator<Item = (PathBuf, u64)>) -> Vec<GgufModel> {
    let mut shards: BTreeMap<(PathBuf, Option<usize>), Shards> = BTreeMap::new();
    for (path, bytes) in files.into_iter().filter(|(path, _)| is_model(path)) {
        if let Some((stem, number, count)) = shard(&path) {
            shards.entry((path.with_file_name(stem), count)).or_default().insert(number, (path, bytes));
        }
    }
    let mut models: Vec<GgufModel> =
        shards.into_iter().map(|((stem, count), files)| GgufModel::new(&stem, count, files)).collect();
    let labels: Vec<String> = models.iter().map(|model| model.label.clone()).collect();
    for model in &mut models {
        if labels.iter().filter(|label| **label == model.label).count() > 1 {
            model.label.clone_from(&model.stem);
        }
    }
    models
}

/// Returns the model with this quantization or file name, or the default. Fails with the existing quantizations.
pub fn choose_gguf<'a>(models: &'a [GgufModel], file: Option<&str>) -> Result<&'a GgufModel, Vec<String>> {
    let chosen = file.map_or_else(|| default(models), |file| named(models, file));
    chosen.ok_or_else(|| models.iter().map(|model| model.label.clone()).collect())
}

/// Returns the model with this quantization or file name.
fn named<'a>(models: &'a [GgufModel], name: &str) -> Option<&'a GgufModel> {
    let is = |text: &str| text.eq_ignore_ascii_case(name);
    let without_prefix = |model: &&GgufModel| model.label.strip_prefix(DYNAMIC).is_some_and(is);
    let by_file = |model: &&GgufModel| {
        is(&model.stem) || model.path.file_name().and_then(|file| file.to_str()).is_some_and(is)
    };
    let by_label = models.iter().find(|model| is(&model.label));
    by_label.or_else(|| models.iter().find(by_file)).or_else(|| models.iter().find(without_prefix))
}

/// The beginnings of labels that are chosen last: types that do not run, and floats, which are large.
const UNUSUAL: [&str; 6] = ["IQ1", "IQ2", "IQ3", "F16", "F32", "BF16"];

/// Returns the model to use if no quantization is named. Complete models take precedence.
fn default(models: &[GgufModel]) -> Option<&GgufModel> {
    let complete = || models.iter().filter(|model| model.missing.is_empty());
    let preferred = DEFAULTS.iter().find_map(|label| complete().find(|model| model.label == **label));
    let is_small = |model: &&GgufModel| {
        let label = model.label.strip_prefix(DYNAMIC).unwrap_or(&model.label);
        !UNUSUAL.iter().any(|start| label.starts_with(start))
    };
    preferred.or_else(|| complete().find(is_small)).or_else(|| complete().next()).or_else(|| models.first())
}

impl GgufModel {
    fn new(stem: &Path, count: Option<usize>, files: Shards) -> Self {
        let name = stem.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let shard = |number: usize| match count {
            Some(count) => format!("{name}-{number:0SHARD_DIGITS$}-of-{count:0SHARD_DIGITS$}.gguf"),
            None => format!("{name}.gguf"),
        };
        let missing = (1..=count.unwrap_or(1)).filter(|number| !files.contains_key(number));
        Self {
            label: quantization(&name).unwrap_or_else(|| name.clone()),
            path: files.get(&1).map_or_else(|| stem.with_file_name(shard(1)), |(path, _)| path.clone()),
            bytes: files.values().map(|(_, bytes)| bytes).sum(),
            missing: missing.map(shard).take(MAX_NAMED).collect(),
            files: files.into_values().map(|(path, _)| path).collect(),
            stem: name,
        }
    }
}

/// Returns true for the path of a GGUF model in its folder. Some repositories have a subfolder for each quantization.
/// Hidden files are no models: macOS writes `._` files next to files on foreign disks.
fn is_model(path: &Path) -> bool {
    let names: Option<Vec<&str>> = path.iter().map(|name| name.to_str()).collect();
    let is_in_place = match names.as_deref() {
        Some([file]) => !file.starts_with('.'),
        Some([folder, file]) => quantization(folder).is_some() && !file.starts_with('.'),
        _ => false,
    };
    is_in_place && has_gguf_extension(path) && !is_auxiliary(path)
}

/// Returns the files in `folder` and in its direct subfolders with their sizes. Broken links are skipped.
fn files(folder: &Path) -> Vec<(PathBuf, u64)> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let top: Vec<PathBuf> = entries(folder).collect();
    let is_quantized = |path: &&PathBuf| {
        path.file_name().and_then(|name| quantization(name.to_str()?)).is_some() && path.is_dir()
    };
    let nested: Vec<PathBuf> = top.iter().filter(is_quantized).flat_map(|path| entries(path)).collect();
    let file = |path: PathBuf| {
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        Some((path.strip_prefix(folder).ok()?.to_path_buf(), metadata.len()))
    };
    top.into_iter().chain(nested).filter_map(file).collect()
}

/// Returns the stem, the number and the count of a file; number 1 and no count for a model in one file.
fn shard(path: &Path) -> Option<(String, usize, Option<usize>)> {
    let stem = path.file_stem()?.to_str()?;
    let number = |text: &str| text.parse().ok().filter(|_| text.len() == SHARD_DIGITS);
    let numbered = stem.rsplit_once("-of-").and_then(|(start, count)| {
        let (name, index) = start.rsplit_once('-')?;
        let (index, count): (usize, usize) = (number(index)?, number(count)?);
        (1..=count).contains(&index).then(|| (name.to_owned(), index, Some(count)))
    });
    Some(numbered.unwrap_or_else(|| (stem.to_owned(), 1, None)))
}

/// Returns the quantization at the end of a file's stem, in upper case.
fn quantization(stem: &str) -> Option<String> {
    let ends = |(at, _): (usize, char)| &stem[at + 1..];
    let tails = stem.char_indices().filter(|(_, symbol)| "-._ ".contains(*symbol)).map(ends);
    [stem].into_iter().chain(tails).map(str::to_uppercase).find(|tail| is_quantization(tail))
}

fn is_quantization(text: &str) -> bool {
    let mut parts = text.strip_prefix(DYNAMIC).unwrap_or(text).split('_');
    let first = parts.next().unwrap_or_default();
    let bits =
        first.strip_prefix('Q').or_else(|| first.strip_prefix("IQ")).or_else(|| first.strip_prefix("TQ"));
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|symbol| symbol.is_ascii_digit());
    let is_word = |text: &str| !text.is_empty() && text.chars().all(|symbol| symbol.is_ascii_alphanumeric());
    (bits.is_some_and(is_number) || OTHER_TYPES.contains(&first)) && parts.all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantization_ends_the_stem() {
        for (stem, label) in [
            ("Qwen3-0.6B-Q8_0", Some("Q8_0")),
            ("qwen2.5-0.5b-instruct-q4_k_m", Some("Q4_K_M")),
            ("gemma-3-270m-it.Q4_K_M", Some("Q4_K_M")),
            ("model_q4_0", Some("Q4_0")),
            ("Model.i1-IQ3_XXS", Some("IQ3_XXS")),
            ("Qwen3-30B-A3B-UD-Q4_K_XL", Some("UD-Q4_K_XL")),
            ("gpt-oss-20b-MXFP4_MOE", Some("MXFP4_MOE")),
            ("bitnet-TQ2_0", Some("TQ2_0")),
            ("q4_0", Some("Q4_0")),
            ("x-BF16", Some("BF16")),
            ("Qwen3-0.6B", None),
            ("q", None),
            ("model-Q4_K_M-imat", None),
            ("model-Q_4", None),
            ("", None),
            ("ünïcode-é", None),
        ] {
            assert_eq!(quantization(stem).as_deref(), label, "{stem}");
        }
    }

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("writes");
            fs::write(path, "GGUF").expect("writes");
        }
        folder
    }

    fn labels(files: &[&str]) -> Vec<String> {
        models(folder(files).path()).into_iter().map(|model| model.label).collect()
    }

    #[test]
    fn only_models_are_listed() {
        let files =
            ["m-Q4_0.gguf", "mmproj-F16.gguf", "m-mmproj-f16.gguf", "imatrix.gguf", "._m-Q8_0.gguf", "a.txt"];
        assert_eq!(labels(&files), ["Q4_0"]);
        assert_eq!(labels(&["a-Q4_0.gguf", "b-Q4_0.GGUF", "c.gguf"]), ["a-Q4_0", "b-Q4_0", "c"]);
        assert_eq!(
            labels(&[
                "BF16/m-BF16-00001-of-00001.gguf",
                "m-Q8_0.gguf",
                "other/m-Q2_K.gguf",
                "m-Q6_K/m-Q6_K.gguf"
            ]),
            ["BF16", "Q6_K", "Q8_0"]
        );
    }

    #[test]
    fn shards_are_one_model() {
        let folder = folder(&[
            "m-Q8_0-00001-of-00002.gguf",
            "m-Q8_0-00002-of-00002.gguf",
            "m-Q2_K-00002-of-99999.gguf",
        ]);
        let [half, whole] = &models(folder.path())[..] else { panic!("two models") };
        assert_eq!((&*half.label, half.bytes, half.missing.len()), ("Q2_K", 4, MAX_NAMED));
        assert_eq!(half.missing[0], "m-Q2_K-00001-of-99999.gguf");
        assert_eq!(half.path, folder.path().join("m-Q2_K-00001-of-99999.gguf"));
        assert_eq!((&*whole.label, whole.bytes, whole.missing.len()), ("Q8_0", 8, 0));
        assert_eq!(whole.path, folder.path().join("m-Q8_0-00001-of-00002.gguf"));
        // Names with other numbers of digits, or with impossible numbers, are models in one file.
        assert_eq!(labels(&["m-1-of-2.gguf", "m-00003-of-00002.gguf"]), ["m-00003-of-00002", "m-1-of-2"]);
    }

    #[test]
    fn a_model_in_a_file_has_the_name_of_the_file() {
        for (file, name) in [
            ("a/m.Q4_1.gguf", Some("m.Q4_1")),
            ("a/m-Q8_0-00001-of-00002.GGUF", Some("m-Q8_0")),
            ("sha256-11", None),
            ("a/folder.1", None),
        ] {
            assert_eq!(gguf_name(Path::new(file)).as_deref(), name, "{file}");
        }
    }

    #[test]
    fn a_quantization_is_chosen_by_name_or_by_preference() {
        for (files, name, expected) in [
            (&["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_0.gguf"][..], None, Some("Q4_K_M")),
            (&["m-Q8_0.gguf", "m-Q4_0.gguf"], None, Some("Q4_0")),
            (&["m-Q2_K.gguf", "m-Q8_0.gguf"], None, Some("Q8_0")),
            (&["m-Q6_K.gguf", "m-Q3_K_S.gguf"], None, Some("Q3_K_S")),
            (&["m-BF16.gguf", "m-IQ1_S.gguf", "m-Q5_K_M.gguf"], None, Some("Q5_K_M")),
            (&["m-BF16.gguf", "m-UD-IQ1_S.gguf", "m-UD-Q4_K_XL.gguf"], None, Some("UD-Q4_K_XL")),
            (&["m-BF16.gguf", "m-IQ1_S.gguf"], None, Some("BF16")),
            (&["m-Q4_K_M-00001-of-00002.gguf", "m-Q6_K.gguf"], None, Some("Q6_K")),
            (&["m-Q4_K_M-00001-of-00002.gguf"], None, Some("Q4_K_M")),
            (&[], None, None),
            (&["m-Q8_0.gguf", "m-Q4_0.gguf"], Some("q8_0"), Some("Q8_0")),
            (&["m-Q8_0.gguf", "m-Q4_0.gguf"], Some("m-q8_0.gguf"), Some("Q8_0")),
            (&["m-Q8_0.gguf", "m-Q4_0.gguf"], Some("m-Q4_0"), Some("Q4_0")),
            (&["m-UD-Q4_K_XL.gguf"], Some("Q4_K_XL"), Some("UD-Q4_K_XL")),
            (&["m-Q8_0.gguf"], Some("Q4_0"), None),
            (&["m-Q8_0.gguf"], Some(""), None),
            (&["m-Q8_0.gguf"], Some("../m-Q8_0"), None),
        ] {
            let folder = folder(files);
            let found = models(folder.path());
            let chosen = choose_gguf(&found, name).ok();
            assert_eq!(chosen.map(|model| &*model.label), expected, "{name:?} of {files:?}");
        }
    }
}
