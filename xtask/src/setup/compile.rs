//! Compiles mlx-c, and on Linux the kernels of crates/cpu-kernels, into the library that programs link.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
};

use anyhow::{Context, Result, ensure};

use super::system::System;
use crate::process::{output, succeeds};

/// A C++ compiler, and the folder of the unpacked wheels and helpers.
pub(crate) struct Compiler<'a> {
    system: System,
    /// The program and its first arguments.
    words: Vec<String>,
    build: &'a Path,
    mlx_c: &'a Path,
}

impl<'a> Compiler<'a> {
    /// Finds a compiler: $CXX, which may contain arguments, or the first usual name that starts.
    pub(super) fn find(system: System, build: &'a Path, mlx_c: &'a Path) -> Result<Self> {
        let chosen = env::var("CXX").unwrap_or_default();
        let names =
            if chosen.trim().is_empty() { system.compilers().to_vec() } else { vec![chosen.as_str()] };
        let words = |name: &&str| name.split_whitespace().map(str::to_owned).collect();
        let mut compilers = names.iter().map(|name| Self::new(system, words(name), build, mlx_c));
        compilers.find(|compiler| succeeds(compiler.command().arg("--version"))).with_context(|| {
            format!("no C++ compiler starts (tried {}): {}", names.join(", "), system.install_compiler())
        })
    }

    /// Creates the compiler with this program and first arguments.
    pub(crate) fn new(system: System, words: Vec<String>, build: &'a Path, mlx_c: &'a Path) -> Self {
        Self { system, words, build, mlx_c }
    }

    /// Compiles and links the library for its final location `home`.
    pub(crate) fn library(&self, home: &Path) -> Result<()> {
        let objects = self.compile()?;
        let name = self.system.library();
        let mut link = self.command();
        // Programs record the library's name. An absolute path needs no search path, which RUSTFLAGS could remove.
        match self.system {
            System::Linux | System::Plain | System::Cuda => {
                link.arg("-shared");
                linker(&mut link, "--no-undefined");
                linker(&mut link, "-soname").arg("-Xlinker").arg(home.join(name));
            }
            System::MacOs => {
                link.args(["-dynamiclib", "-install_name"]).arg(home.join(name));
            }
        }
        link.arg("-o").arg(self.build.join(name)).args(&objects);
        for (folder, name) in self.system.linked() {
            link.arg(format!("-L{}", self.build.join(folder).display())).arg(format!("-l{name}"));
        }
        for path in self.system.search_paths() {
            linker(&mut link, "-rpath").arg("-Xlinker").arg(path);
        }
        output(&mut link, self.system.install_compiler())
            .with_context(|| format!("{name} could not be linked"))?;
        Ok(())
    }

    /// Compiles mlx-c and our sources, and returns the object files.
    pub(crate) fn compile(&self) -> Result<Vec<PathBuf>> {
        let mut sources = cpp_files(&self.mlx_c.join("mlx/c"))?;
        sources.extend(self.system.sources().iter().map(|name| self.build.join("helpers").join(name)));
        self.objects(&sources)
    }

    /// Builds the self-check, after the library has been moved to `home`.
    pub(crate) fn self_check(&self, home: &Path) -> Result<PathBuf> {
        let program = home.join("self_check");
        let mut command = self.command();
        command.args(["-std=c++20", "-O1", "-fPIC", "-w", "-o"]).arg(&program);
        command.arg(home.join("helpers/self_check.cpp")).arg("-I").arg(home.join("mlx/include"));
        command.args(["libmlxc.so", "mlx/lib/libmlx.so"].map(|library| home.join(library))).arg("-ldl");
        for folder in ["mlx/lib", "scipy_openblas32/lib"] {
            linker(&mut command, "-rpath").arg("-Xlinker").arg(home.join(folder));
        }
        output(&mut command, self.system.install_compiler()).context("the self-check could not be built")?;
        Ok(program)
    }

    /// Returns the folder of the compiler's own C headers, such as stddef.h, which libclang lacks.
    pub(crate) fn builtin_headers(&self) -> Result<PathBuf> {
        for question in ["-print-file-name=include", "-print-resource-dir"] {
            let answer = output(self.command().arg(question), self.system.install_compiler())?;
            let folder = PathBuf::from(answer.trim());
            for candidate in [folder.clone(), folder.join("include")] {
                if candidate.join("stddef.h").is_file() {
                    return Ok(candidate);
                }
            }
        }
        anyhow::bail!("{} does not report the location of its stddef.h", self.words.join(" "))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        command
    }

    /// Compiles every source, one per core at a time. After a failure no further source is started.
    fn objects(&self, sources: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let folder = self.build.join("objects");
        fs::create_dir_all(&folder)?;
        let mut jobs = Vec::new();
        for source in sources {
            let name = source.file_stem().context("a source has a name")?;
            jobs.push((source, folder.join(name).with_extension("o")));
        }
        let queue = Mutex::new(jobs.iter());
        let lock = || queue.lock().expect("no worker panics");
        let worker = || -> Result<()> {
            loop {
                // A separate statement, so that the lock is released before the compiler runs.
                let job = lock().next();
                let Some((source, object)) = job else { return Ok(()) };
                self.object(source, object).inspect_err(|_| *lock() = [].iter())?;
            }
        };
        thread::scope(|scope| {
            let workers = thread::available_parallelism().map_or(2, usize::from).min(jobs.len());
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no worker panics"))
        })?;
        Ok(jobs.into_iter().map(|(_, object)| object).collect())
    }

    fn object(&self, source: &Path, object: &Path) -> Result<()> {
        let mut command = self.command();
        command.args(["-std=c++20", "-O2", "-fPIC", "-w", "-c", "-o"]).arg(object).arg(source);
        // Error messages of mlx-c contain the paths of its sources.
        for (folder, name) in [(self.mlx_c, "mlx-c"), (self.build, "native")] {
            command.arg(format!("-ffile-prefix-map={}={name}", folder.display()));
        }
        let helpers = self.build.join("helpers");
        command.arg("-include").arg(helpers.join("portability.h"));
        if source.starts_with(self.mlx_c) {
            command.arg("-include").arg(helpers.join("newer_mlx.h"));
        }
        command.arg("-I").arg(self.build.join("mlx/include")).arg("-I").arg(self.mlx_c);
        output(&mut command, self.system.install_compiler())
            .with_context(|| format!("{} does not compile", source.display()))?;
        Ok(())
    }
}

/// Passes a word to the linker. `-Wl,` would split a path at its commas.
fn linker<'a>(command: &'a mut Command, word: &str) -> &'a mut Command {
    command.arg("-Xlinker").arg(word)
}

fn cpp_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "cpp"));
    ensure!(!files.is_empty(), "no source in {}", folder.display());
    // The largest first, so that the cores finish together.
    files.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).map_or(0, |data| data.len())));
    Ok(files)
}
