//! The folder that replaces Apple's SDK when the program is linked on Linux: stubs of the few system libraries that it needs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::stub::{self, Symbols};

/// The stubs of frameworks. The program uses symbols of the first two; dependencies only name the third.
const FRAMEWORKS: [(&str, &str); 3] = [
    ("CoreFoundation", include_str!("stubs/CoreFoundation.tbd")),
    ("Security", include_str!("stubs/Security.tbd")),
    ("Foundation", include_str!("stubs/Foundation.tbd")),
];

/// The stubs of libraries. libc++ lists the symbols that libmlxc may use: those that the libc++ of macOS 14 has.
const LIBRARIES: [(&str, &str); 3] = [
    ("libobjc", include_str!("stubs/libobjc.tbd")),
    ("libiconv", include_str!("stubs/libiconv.tbd")),
    ("libc++", include_str!("stubs/libc++.tbd")),
];

/// The symbols of system libraries that MLX's own libraries use. They are for the check of a release, not for linking.
const OF_MLX: &str = include_str!("stubs/of-mlx.tbd");

/// The names under which programs link the C library of macOS.
const C_LIBRARY: [&str; 3] = ["libSystem", "libc", "libm"];

/// Writes the stubs into `folder`. `libsystem` is the stub of the C library in zig's package.
pub(super) fn write(folder: &Path, libsystem: &Path) -> Result<()> {
    for (name, text) in FRAMEWORKS {
        let framework = folder.join(format!("System/Library/Frameworks/{name}.framework"));
        fs::create_dir_all(&framework)?;
        fs::write(framework.join(format!("{name}.tbd")), text)?;
    }
    let libraries = folder.join("usr/lib");
    fs::create_dir_all(&libraries)?;
    for (name, text) in LIBRARIES {
        fs::write(libraries.join(format!("{name}.tbd")), text)?;
    }
    let text = stub::only_arm(&c_library(libsystem)?);
    for name in C_LIBRARY {
        fs::write(libraries.join(format!("{name}.tbd")), &text)?;
    }
    Ok(())
}

/// Returns the symbols of system libraries that our files and MLX's may use.
pub(super) fn symbols(libsystem: &Path) -> Result<Symbols> {
    let mut symbols = Symbols::new();
    for (_, text) in FRAMEWORKS.iter().chain(&LIBRARIES) {
        stub::read(text, &mut symbols);
    }
    stub::read(OF_MLX, &mut symbols);
    stub::read(&c_library(libsystem)?, &mut symbols);
    Ok(symbols)
}

fn c_library(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
