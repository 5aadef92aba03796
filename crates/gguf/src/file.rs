//! An open GGUF file, or all files of a split one: metadata and stored tensors.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::header::Header;
use crate::metadata::Metadata;
use crate::tensor_type::TensorType;

/// The number of files of a split model.
const SPLIT_COUNT: &str = "split.count";

/// The number of a file of a split model, from 0.
const SPLIT_NUMBER: &str = "split.no";

/// The number of tensors in all files of a split model.
const SPLIT_TENSORS: &str = "split.tensors.count";

/// An open GGUF file, or all files of a split one.
#[derive(Debug)]
pub struct GgufFile {
    files: Vec<(PathBuf, File)>,
    metadata: Metadata,
    tensors: Vec<StoredTensor>,
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// The name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// The shape, outermost axis first.
    pub shape: Vec<usize>,
    /// The type of the elements.
    pub kind: TensorType,
    /// The index of the file that contains the tensor.
    file: usize,
    /// The offset of the first byte in the file.
    start: u64,
    /// The number of bytes.
    pub length: u64,
}

impl StoredTensor {
    /// The number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl GgufFile {
    /// Opens a file and reads its header. `path` is the first file of a split model; the others are in the same folder.
    pub fn open(path: &Path) -> Result<Self> {
        let name = SplitName::of(path);
        if let Some(name) = &name
            && name.number != 1
        {
            return Err(Error::file(
                path,
                format!(
                    "is file {} of {} of a split model; open {} instead",
                    name.number,
                    name.count,
                    name.path(1).display()
                ),
            ));
        }
        let mut opened =
            Self { files: Vec::new(), metadata: Metadata::of(path, [].into()), tensors: Vec::new() };
        opened.metadata = opened.add(path)?;
        let count = opened.metadata.size(SPLIT_COUNT)?.unwrap_or(1).max(1);
        if let Some(name) = &name
            && name.count == count
        {
            opened.add_others(name)?;
        } else if count > 1 {
            return Err(opened.metadata.error(
                SPLIT_COUNT,
                format!("is {count}; the files must be named NAME-00001-of-{count:05}.gguf and so on"),
            ));
        }
        Ok(opened)
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors of all files.
    pub fn tensors(&self) -> &[StoredTensor] {
        &self.tensors
    }

    /// The path of the first file.
    pub(crate) fn path(&self) -> &Path {
        self.metadata.path()
    }

    /// Reads bytes of a tensor from byte `place` of it. Several threads may read at the same time.
    pub fn read(&self, tensor: &StoredTensor, place: u64, bytes: &mut [u8]) -> Result<()> {
        let (path, file) = &self.files[tensor.file];
        if place.checked_add(bytes.len() as u64).is_none_or(|end| end > tensor.length) {
            return Err(Error::file(
                path,
                format!("tensor {} has {} bytes; a read would end after them", tensor.name, tensor.length),
            ));
        }
        file.read_exact_at(bytes, tensor.start + place).map_err(|source| Error::io(path, source))
    }

    /// Returns the numbers of a tensor of floats. It should be small: all of them are in memory.
    pub fn floats(&self, tensor: &StoredTensor) -> Result<Vec<f32>> {
        if !matches!(tensor.kind, TensorType::F32 | TensorType::F16 | TensorType::BF16) {
            return Err(self.error(tensor, format!("is {}; it must be F32, F16 or BF16", tensor.kind)));
        }
        let mut bytes = vec![0; tensor.length as usize];
        self.read(tensor, 0, &mut bytes)?;
        let pairs = bytes.as_chunks::<2>().0.iter();
        Ok(match tensor.kind {
            TensorType::F16 => pairs.map(|pair| f16::from_le_bytes(*pair).to_f32()).collect(),
            TensorType::BF16 => pairs.map(|pair| bf16::from_le_bytes(*pair).to_f32()).collect(),
            _ => bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
        })
    }

    /// Returns an error about a tensor.
    pub(crate) fn error(&self, tensor: &StoredTensor, message: impl std::fmt::Display) -> Error {
        Error::file(&self.files[tensor.file].0, format!("tensor {} {message}", tensor.name))
    }

    /// Opens a file and adds its tensors. Returns its metadata.
    fn add(&mut self, path: &Path) -> Result<Metadata> {
        let file = File::open(path).map_err(|source| Error::io(path, source))?;
        let about = file.metadata().map_err(|source| Error::io(path, source))?;
        if about.is_dir() {
            return Err(Error::file(path, "is a folder; name a file that ends in .gguf"));
        }
        let header = Header::read(path, &file, about.len())?;
        let index = self.files.len();
        self.files.push((path.to_path_buf(), file));
        self.tensors.extend(header.tensors.into_iter().map(|tensor| StoredTensor {
            name: tensor.name,
            shape: tensor.shape,
            kind: tensor.kind,
            file: index,
            start: tensor.start,
            length: tensor.length,
        }));
        Ok(header.metadata)
    }

    /// Opens the other files of a split model and checks that they belong to the first.
    fn add_others(&mut self, name: &SplitName) -> Result<()> {
        for number in 1..=name.count {
            let metadata = if number == 1 { self.metadata.clone() } else { self.add(&name.path(number))? };
            for (key, expected) in [(SPLIT_COUNT, name.count), (SPLIT_NUMBER, number - 1)] {
                if metadata.size(key)? != Some(expected) {
                    return Err(metadata.error(
                        key,
                        format!("must be {expected}: the file does not belong to this model under this name"),
                    ));
                }
            }
        }
        let mut names = HashSet::new();
        if let Some(tensor) = self.tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
            return Err(self.error(tensor, "is in two files of the split model"));
        }
        match self.metadata.size(SPLIT_TENSORS)? {
            Some(expected) if expected != self.tensors.len() => Err(self.metadata.error(
                SPLIT_TENSORS,
                format!("is {expected}, but the files contain {} tensors", self.tensors.len()),
            )),
            _ => Ok(()),
        }
    }
}

/// The name of a file of a split model: `NAME-00001-of-00003.gguf`.
pub(crate) struct SplitName {
    folder: PathBuf,
    model: String,
    number: usize,
    pub(crate) count: usize,
}

impl SplitName {
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (start, count) = stem.rsplit_once("-of-")?;
        let (model, number) = start.rsplit_once('-')?;
        let read = |digits: &str| {
            let valid = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|number| valid && *number > 0)
        };
        Some(Self {
            folder: path.parent()?.to_path_buf(),
            model: model.to_owned(),
            number: read(number)?,
            count: read(count)?,
        })
    }

    pub(crate) fn path(&self, number: usize) -> PathBuf {
        self.folder.join(format!("{}-{number:05}-of-{:05}.gguf", self.model, self.count))
    }
}
