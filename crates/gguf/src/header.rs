//! Reads the header of one file: metadata and descriptions of tensors. Every count is checked against the bytes that are left.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::error::{Error, Result};
use crate::metadata::{List, Metadata, Value};
use crate::tensor_type::TensorType;

/// The first bytes of a file.
const MAGIC: &[u8; 4] = b"GGUF";

/// The longest header in bytes: fifty times that of a vocabulary of 262 144 tokens.
const LONGEST_HEADER: u64 = 512 << 20;

/// The longest string in bytes.
const LONGEST_STRING: u64 = 64 << 20;

/// A list has at most this many items. Vocabularies have less than a million.
const MOST_ITEMS: u64 = 4 << 20;

/// A file has at most this many tensors. The largest models have some ten thousand.
const MOST_TENSORS: u64 = 1 << 20;

/// Lists of lists may be this deep.
const DEEPEST_LIST: usize = 8;

/// A tensor has at most this many dimensions.
const MOST_DIMENSIONS: u32 = 4;

/// The alignment of tensors if the file does not set one.
const DEFAULT_ALIGNMENT: u64 = 32;

/// The header of one file.
pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<Description>,
}

/// A tensor of the header.
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: TensorType,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

impl Header {
    /// Reads the header of an open file of `length` bytes.
    pub(crate) fn read(path: &Path, file: &File, length: u64) -> Result<Self> {
        let mut input =
            Input { path, reader: BufReader::with_capacity(1 << 20, file), place: 0, end: length };
        let (tensors, keys) = input.counts()?;
        let mut values = BTreeMap::new();
        for _ in 0..keys {
            let key = input.string("a key")?;
            let kind = input.u32(&key)?;
            let value = input.value(&key, kind)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(input.error(format!("{key} occurs twice")));
            }
        }
        let metadata = Metadata::of(path, values);
        let alignment = alignment(&metadata)?;
        let mut descriptions = Vec::new();
        let mut names = HashSet::new();
        for index in 0..tensors {
            let description = input.description(index)?;
            if !names.insert(description.name.clone()) {
                return Err(input.error(format!("tensor {} occurs twice", description.name)));
            }
            descriptions.push(description);
        }
        let data = input.place.next_multiple_of(alignment);
        place(path, &mut descriptions, data, alignment, length)?;
        Ok(Self { metadata, tensors: descriptions })
    }
}

/// Returns the alignment of tensors.
fn alignment(metadata: &Metadata) -> Result<u64> {
    const KEY: &str = "general.alignment";
    match metadata.size(KEY)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(alignment) if alignment.is_power_of_two() => Ok(alignment as u64),
        Some(alignment) => Err(metadata.error(KEY, format!("is {alignment}; it must be a power of two"))),
    }
}

/// Makes the starts of tensors absolute, and checks that tensors are inside the file and do not overlap.
fn place(path: &Path, tensors: &mut [Description], data: u64, alignment: u64, length: u64) -> Result<()> {
    for tensor in &mut *tensors {
        if tensor.start % alignment != 0 {
            return Err(Error::file(
                path,
                format!(
                    "tensor {} starts at {}, which is not a multiple of general.alignment {alignment}",
                    tensor.name, tensor.start
                ),
            ));
        }
        let start = tensor.start.saturating_add(data);
        if start.saturating_add(tensor.length) > length {
            return Err(Error::file(
                path,
                format!("tensor {} ends after the end of the file: download it again", tensor.name),
            ));
        }
        tensor.start = start;
    }
    let mut order: Vec<&Description> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.start);
    for pair in order.windows(2) {
        if pair[0].start + pair[0].length > pair[1].start {
            return Err(Error::file(path, format!("tensors {} and {} overlap", pair[0].name, pair[1].name)));
        }
    }
    Ok(())
}

/// The unread bytes of a file.
struct Input<'a> {
    path: &'a Path,
    reader: BufReader<&'a File>,
    place: u64,
    end: u64,
}

impl Input<'_> {
    fn error(&self, message: impl Into<String>) -> Error {
        Error::file(self.path, message)
    }

    /// Checks that `bytes` more bytes exist. `field` names the field in an error.
    fn check(&self, field: &str, bytes: u64) -> Result<()> {
        if bytes > self.end - self.place {
            return Err(self.error(format!("the file ends inside {field}: download it again")));
        }
        if bytes > LONGEST_HEADER.saturating_sub(self.place) {
            return Err(self.error(format!(
                "{field} is not within the first {} MiB, the longest header",
                LONGEST_HEADER >> 20
            )));
        }
        Ok(())
    }

    fn bytes<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        self.check(field, N as u64)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|source| Error::io(self.path, source))?;
        self.place += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self, field: &str) -> Result<u32> {
        self.bytes(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: &str) -> Result<u64> {
        self.bytes(field).map(u64::from_le_bytes)
    }

    /// Reads magic and version. Returns the numbers of tensors and keys.
    fn counts(&mut self) -> Result<(u64, u64)> {
        if &self.bytes::<4>("the magic number")? != MAGIC {
            return Err(self.error("not a GGUF file: it does not begin with `GGUF`"));
        }
        match self.u32("the version")? {
            2 | 3 => {}
            1 => return Err(self.error("GGUF version 1 is not supported; convert the model again")),
            version if version.trailing_zeros() >= 16 => {
                return Err(
                    self.error("the file is big-endian; convert the model again for a little-endian machine")
                );
            }
            version => {
                return Err(self.error(format!("GGUF version {version}; supported versions are 2 and 3")));
            }
        }
        let (tensors, keys) = (self.u64("the number of tensors")?, self.u64("the number of keys")?);
        // The shortest description of a tensor has 32 bytes, the shortest key with its value 13.
        self.check("the tensors", tensors.saturating_mul(32))?;
        if tensors > MOST_TENSORS {
            return Err(self.error(format!("the file has {tensors} tensors; the limit is {MOST_TENSORS}")));
        }
        self.check("the metadata", keys.saturating_mul(13))?;
        Ok((tensors, keys))
    }

    /// Reads a string. Invalid UTF-8 is replaced.
    fn string(&mut self, field: &str) -> Result<String> {
        let length = self.u64(field)?;
        self.check(field, length)?;
        if length > LONGEST_STRING {
            return Err(self.error(format!("{field} has {length} bytes; the limit is {LONGEST_STRING}")));
        }
        let mut bytes = vec![0; length as usize];
        self.reader.read_exact(&mut bytes).map_err(|source| Error::io(self.path, source))?;
        self.place += length;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    fn bool(&mut self, key: &str) -> Result<bool> {
        match self.bytes(key)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [byte] => Err(self.error(format!("{key} is the boolean {byte}; it must be 0 or 1"))),
        }
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Integer(u8::from_le_bytes(self.bytes(key)?).into()),
            1 => Value::Integer(i8::from_le_bytes(self.bytes(key)?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.bytes(key)?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.bytes(key)?).into()),
            4 => Value::Integer(u32::from_le_bytes(self.bytes(key)?).into()),
            5 => Value::Integer(i32::from_le_bytes(self.bytes(key)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.bytes(key)?).into()),
            7 => Value::Bool(self.bool(key)?),
            8 => Value::Text(self.string(key)?),
            9 => Value::List(self.list(key, 1)?),
            10 => Value::Integer(u64::from_le_bytes(self.bytes(key)?).into()),
            11 => Value::Integer(i64::from_le_bytes(self.bytes(key)?).into()),
            12 => Value::Float(f64::from_le_bytes(self.bytes(key)?)),
            _ => return Err(self.unknown(key, kind)),
        })
    }

    fn unknown(&self, key: &str, kind: u32) -> Error {
        self.error(format!("{key} has the unknown value type {kind}"))
    }

    fn list(&mut self, key: &str, depth: usize) -> Result<List> {
        let kind = self.u32(key)?;
        let count = self.u64(key)?;
        let Some(least) = least_bytes(kind) else { return Err(self.unknown(key, kind)) };
        self.check(key, count.saturating_mul(least))?;
        if count > MOST_ITEMS {
            return Err(self.error(format!("{key} has {count} items; the limit is {MOST_ITEMS}")));
        }
        Ok(match kind {
            0..=5 | 10 | 11 => List::Integers(self.items(count, |input| input.integer(key, kind))?),
            6 | 12 => List::Floats(self.items(count, |input| match input.value(key, kind)? {
                Value::Float(number) => Ok(number),
                _ => Err(input.unknown(key, kind)),
            })?),
            7 => List::Bools(self.items(count, |input| input.bool(key))?),
            8 => List::Texts(self.items(count, |input| input.string(key))?),
            _ if depth == DEEPEST_LIST => {
                return Err(self.error(format!("{key} nests lists more than {DEEPEST_LIST} deep")));
            }
            _ => {
                for _ in 0..count {
                    self.list(key, depth + 1)?;
                }
                List::Nested
            }
        })
    }

    fn items<T>(&mut self, count: u64, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        (0..count).map(|_| item(self)).collect()
    }

    fn integer(&mut self, key: &str, kind: u32) -> Result<i64> {
        match self.value(key, kind)? {
            Value::Integer(number) => i64::try_from(number)
                .map_err(|_| self.error(format!("{key} contains {number}, which does not fit into 63 bits"))),
            _ => Err(self.unknown(key, kind)),
        }
    }

    /// Reads the description of a tensor. Its start is relative to the data.
    fn description(&mut self, index: u64) -> Result<Description> {
        let name = self.string(&format!("the name of tensor {index}"))?;
        let field = format!("tensor {name}");
        let dimensions = self.u32(&field)?;
        if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
            return Err(self.error(format!(
                "{field} has {dimensions} dimensions; the number must be from 1 to {MOST_DIMENSIONS}"
            )));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(self.u64(&field)?);
        }
        shape.reverse();
        let number = self.u32(&field)?;
        let start = self.u64(&field)?;
        let Some(kind) = TensorType::of(number) else {
            return Err(self.error(format!(
                "{field} has the unknown type {number}; use another quantization of this model, such as Q4_K_M or Q8_0"
            )));
        };
        let length = self.length(&field, &shape, kind)?;
        let shape = shape.into_iter().map(|size| size as usize).collect();
        Ok(Description { name, shape, kind, start, length })
    }

    /// Returns the number of bytes of a tensor.
    fn length(&self, field: &str, shape: &[u64], kind: TensorType) -> Result<u64> {
        let elements =
            shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size)).filter(|elements| {
                // Sizes and byte offsets of the converted tensor, at most four bytes an element, fit as well.
                (1..=u64::MAX >> 8).contains(elements)
            });
        let Some(elements) = elements else {
            return Err(self.error(format!("{field} has the impossible shape {shape:?}")));
        };
        let row = shape.last().copied().unwrap_or(1);
        let block = kind.block_elements() as u64;
        if row % block != 0 {
            return Err(self.error(format!(
                "{field} has rows of {row} elements; rows of {kind} must be a multiple of {block}"
            )));
        }
        (elements / block)
            .checked_mul(kind.block_bytes() as u64)
            .ok_or_else(|| self.error(format!("{field} has the impossible shape {shape:?}")))
    }
}

/// The fewest bytes that an item of a list takes.
fn least_bytes(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        9 => 12,
        _ => return None,
    })
}
