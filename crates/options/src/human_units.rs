//! Sizes and times in flags and config files: `8GB`, `512MiB`, `30`, `0.5`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 9] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
];

/// Accepted when parsing, never printed.
const LETTERS: [(&str, u64); 4] =
    [("k", 1_000), ("m", 1_000_000), ("g", 1_000_000_000), ("t", 1_000_000_000_000)];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_ascii_lowercase();
        let unit =
            UNITS.iter().chain(&LETTERS).find_map(|(name, size)| Some((lower.strip_suffix(name)?, *size)));
        let (number, unit) = unit.unwrap_or((&lower, 1));
        let bytes = number.trim().parse::<f64>().ok().map(|number| number * unit as f64);
        match bytes.filter(|bytes| (0.0..1e18).contains(bytes)) {
            Some(bytes) => Ok(Self(bytes as u64)),
            None => Err(format!(
                "{text:?} is not a size; write a number of bytes, or a size such as 8GB or 512MiB"
            )),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.iter().filter(|(_, size)| self.0 >= *size && self.0.is_multiple_of(*size));
        match whole.max_by_key(|(_, size)| size) {
            Some((name, size)) => write!(out, "{}{}", self.0 / size, name.to_uppercase().replace('I', "i")),
            None => write!(out, "{}B", self.0),
        }
    }
}

/// A duration in seconds.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

impl Seconds {
    /// Returns it as a [`Duration`].
    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }
}

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = text.trim().trim_end_matches('s').parse::<f64>().ok();
        match seconds.filter(|seconds| (0.0..=1e9).contains(seconds)) {
            Some(seconds) => Ok(Self(seconds)),
            None => Err(format!("{text:?} is not a time; write a number of seconds, such as 30 or 0.5")),
        }
    }
}

/// A value in a config file: a number or a string.
#[derive(Deserialize)]
#[serde(untagged, expecting = "it must be a number or a string")]
enum Written {
    Whole(u64),
    Number(f64),
    Text(String),
}

/// Reads both types from config files in the syntax of flags.
macro_rules! in_files {
    ($($unit:ty),*) => { $(
        impl<'de> Deserialize<'de> for $unit {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = match Written::deserialize(deserializer)? {
                    Written::Whole(number) => number.to_string(),
                    Written::Number(number) => number.to_string(),
                    Written::Text(text) => text,
                };
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )* };
}
in_files!(ByteSize, Seconds);

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        let bytes = |text: &str| text.parse::<ByteSize>().map(|size| size.0);
        assert_eq!(bytes("8GB"), Ok(8_000_000_000));
        assert_eq!(bytes("512 MiB"), Ok(512 << 20));
        assert_eq!(bytes("1.5kb"), Ok(1500));
        assert_eq!(bytes("12"), Ok(12));
        assert_eq!([bytes("8G"), bytes("1k"), bytes("1.5m")], [Ok(8_000_000_000), Ok(1000), Ok(1_500_000)]);
        for wrong in ["", "GB", "-1", "1e99", "nan", "8 apples"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        for size in ["8GB", "512MiB", "1500B", "0B"] {
            assert_eq!(size.parse::<ByteSize>().expect("valid").to_string(), size);
        }
    }

    #[test]
    fn times_are_read() {
        assert_eq!("30".parse(), Ok(Seconds(30.0)));
        assert_eq!("0.5s".parse(), Ok(Seconds(0.5)));
        assert!("-1".parse::<Seconds>().is_err() && "inf".parse::<Seconds>().is_err());
    }
}
