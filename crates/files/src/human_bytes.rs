//! Human-readable byte counts.

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// Formats a number of bytes in the largest unit that gives at least 1, such as `1.50 GiB`.
pub fn size(bytes: u64) -> String {
    let (mut number, mut unit) = (bytes as f64, 0);
    while number >= 1024.0 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 { 0 } else { 2 };
    format!("{number:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(size(1000), "1000 B");
        assert_eq!(size(1536), "1.50 KiB");
        assert_eq!(size(1_000_000_000), "953.67 MiB");
        assert_eq!(size(3 << 40), "3.00 TiB");
    }
}
