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

/// Formats a size in decimal units: `340 MB`, `2.3 GB`.
pub fn rough_size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        ..1e6 => format!("{:.0} kB", (bytes / 1e3).ceil()),
        ..1e7 => format!("{:.1} MB", bytes / 1e6),
        // Sizes that would round to 1000 MB are shown as 1.0 GB.
        ..999.5e6 => format!("{:.0} MB", bytes / 1e6),
        _ => format!("{:.1} GB", bytes / 1e9),
    }
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

    #[test]
    fn rough_sizes_are_short() {
        let sizes = [0, 1, 999_000, 4_200_000, 340_400_000, 999_600_000, 17_200_000_000].map(rough_size);
        assert_eq!(sizes, ["0 kB", "1 kB", "999 kB", "4.2 MB", "340 MB", "1.0 GB", "17.2 GB"]);
    }
}
