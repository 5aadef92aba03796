//! Finds import cycles: files of a crate that import each other can only be understood together. A module and its child may import each other.
//! The modules in a folder of [`LAYERED`], each with all files below it, must not form a cycle either.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    code::without_comments_and_strings,
    files::SourceFile,
    imports::{self, Import},
    violation::Violation,
};

/// Folders in which modules depend on each other in one direction. A file of a module counts as the module, so that a re-export hides no
/// cycle.
const LAYERED: [&str; 4] =
    ["mlx-core/src/cache", "mlx-core/src/distributed", "mlx-core/src/engine", "mlx-core/src/sampling"];

/// A module of one crate, by the names from the root to it.
type Module = Vec<String>;

struct Source {
    path: String,
    imports: Vec<Import>,
    paths: Vec<imports::Path>,
}

/// The files of one crate.
struct Crate(BTreeMap<Module, Source>);

/// The files of a cycle by path, each with its imports within the cycle.
pub(super) type Cycle = Vec<(String, Vec<String>)>;

/// Returns every cycle of all crates.
pub(super) fn find(files: &[SourceFile]) -> Vec<Cycle> {
    let of_crate = |(folder, one): (String, Crate)| {
        let root = format!("{folder}/src/");
        let layered = LAYERED.iter().filter_map(|path| path.strip_prefix(&root));
        let layered: Vec<Cycle> =
            layered.flat_map(|inner| one.cycles_of_children(&module(inner, true))).collect();
        one.cycles().into_iter().chain(layered).collect::<Vec<Cycle>>()
    };
    crates(files).into_iter().flat_map(of_crate).collect()
}

/// Returns a violation per cycle, at its first file.
pub(super) fn violations(cycles: &[Cycle]) -> Vec<Violation> {
    let first = |cycle: &Cycle| cycle[0].0.clone();
    let rule = |cycle: &Cycle| {
        let lines: Vec<String> = cycle
            .iter()
            .map(|(file, imported)| format!("\n    {file} imports {}", imported.join(", ")))
            .collect();
        let rule = format!("these files import each other in a cycle:{}", lines.concat());
        Violation { path: first(cycle), line: 0, rule }
    };
    cycles.iter().map(rule).collect()
}

fn crates(files: &[SourceFile]) -> Vec<(String, Crate)> {
    let mut folders: BTreeMap<&str, Vec<(&str, &SourceFile)>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        if let Some((folder, inner)) = file.path.split_once("/src/") {
            folders.entry(folder).or_default().push((inner, file));
        }
    }
    folders.into_iter().map(|(folder, files)| (folder.to_owned(), Crate::new(&files))).collect()
}

impl Crate {
    fn new(files: &[(&str, &SourceFile)]) -> Self {
        let has_library = files.iter().any(|(inner, _)| *inner == "lib.rs");
        let mut sources = BTreeMap::new();
        let mut tests = BTreeSet::new();
        for (inner, file) in files {
            let (code, for_tests) = imports::without_tests(&without_comments_and_strings(&file.text));
            let (imports, paths) = imports::read(&code);
            let module = module(inner, has_library);
            tests.extend(for_tests.into_iter().map(|name| [module.as_slice(), &[name]].concat()));
            sources.insert(module, Source { path: file.path.clone(), imports, paths });
        }
        sources.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        Self(sources)
    }

    /// Returns components of more than two files, and pairs that are not a module and its child.
    fn cycles(&self) -> Vec<Cycle> {
        let modules: Vec<&Module> = self.0.keys().collect();
        let targets: Vec<BTreeSet<usize>> = modules
            .iter()
            .map(|module| {
                let known = self.targets(module);
                known.iter().filter_map(|target| modules.binary_search(&target).ok()).collect()
            })
            .collect();
        let mut cycles = components(&targets);
        cycles.retain(|cycle| cycle.len() > 2 || !is_child(modules[cycle[0]], modules[cycle[1]]));
        named(&cycles, &targets, |index| self.0[modules[index]].path.clone())
    }

    /// Returns components of more than one child of a module. A child includes everything below it.
    fn cycles_of_children(&self, parent: &Module) -> Vec<Cycle> {
        let child = |module: &Module| -> Option<Module> {
            (module.len() > parent.len() && module.starts_with(parent))
                .then(|| module[..=parent.len()].to_vec())
        };
        let children: BTreeSet<Module> = self.0.keys().filter_map(child).collect();
        let children: Vec<&Module> = children.iter().collect();
        let mut targets = vec![BTreeSet::new(); children.len()];
        for module in self.0.keys() {
            let place = |module: &Module| children.binary_search(&&child(module)?).ok();
            let Some(from) = place(module) else { continue };
            targets[from].extend(self.targets(module).iter().filter_map(place).filter(|&to| to != from));
        }
        named(&components(&targets), &targets, |index| self.0[children[index]].path.clone())
    }

    /// Returns the other modules that a module's file needs.
    fn targets(&self, module: &Module) -> BTreeSet<Module> {
        let source = &self.0[module];
        let paths = source.imports.iter().map(|import| &import.path).chain(&source.paths);
        let mut targets: BTreeSet<Module> = paths.filter_map(|path| self.resolve(module, path, 0)).collect();
        targets.remove(module);
        targets
    }

    /// Returns the module that defines the item of a path seen from `module`; `None` if it is in another crate.
    fn resolve(&self, module: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => parent(module)?,
            name => {
                let child = [module.as_slice(), &[name.to_owned()]].concat();
                self.0.contains_key(&child).then_some(child)?
            }
        };
        while let Some((name, after)) = rest.split_first() {
            let child = [at.as_slice(), std::slice::from_ref(name)].concat();
            if name == "super" {
                at = parent(&at)?;
            } else if self.0.contains_key(&child) {
                at = child;
            } else {
                // Imports of a module can be used through it.
                let imported = self.0.get(&at).into_iter().flat_map(|source| &source.imports);
                let import = imported.into_iter().find(|import| import.name.as_ref() == Some(name));
                return match import {
                    Some(import) if depth < 8 => {
                        let whole = [&import.path, after].concat();
                        self.resolve(&at, &whole, depth + 1)
                    }
                    _ => Some(at),
                };
            }
            rest = after;
        }
        Some(at)
    }
}

fn module(inner: &str, has_library: bool) -> Module {
    let stem = inner.strip_suffix(".rs").unwrap_or(inner);
    let names: Module = stem.split('/').map(str::to_owned).collect();
    match names.split_last() {
        Some((last, folder)) if last == "mod" => folder.to_vec(),
        Some((last, [])) if last == "lib" || last == "main" && !has_library => Vec::new(),
        _ => names,
    }
}

fn parent(module: &Module) -> Option<Module> {
    module.split_last().map(|(_, parent)| parent.to_vec())
}

fn is_child(one: &Module, other: &Module) -> bool {
    parent(one).as_ref() == Some(other) || parent(other).as_ref() == Some(one)
}

/// Returns the sets of more than one node that reach each other.
fn components(targets: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..targets.len()).map(|from| reach(from, targets)).collect();
    let component = |from: usize| -> Vec<usize> {
        reached[from].iter().copied().filter(|&to| reached[to].contains(&from)).collect()
    };
    let found: BTreeSet<Vec<usize>> = (0..targets.len()).map(component).collect();
    found.into_iter().filter(|component| component.len() > 1).collect()
}

fn named(
    components: &[Vec<usize>],
    targets: &[BTreeSet<usize>],
    path: impl Fn(usize) -> String,
) -> Vec<Cycle> {
    let imported = |from: usize, cycle: &[usize]| {
        targets[from].iter().filter(|to| cycle.contains(to)).map(|&to| path(to)).collect()
    };
    let cycle =
        |cycle: &Vec<usize>| cycle.iter().map(|&index| (path(index), imported(index, cycle))).collect();
    components.iter().map(cycle).collect()
}

/// Returns the nodes that can be reached from a node, including itself.
fn reach(from: usize, targets: &[BTreeSet<usize>]) -> BTreeSet<usize> {
    let (mut reached, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(node) = open.pop() {
        open.extend(targets[node].iter().copied().filter(|&next| reached.insert(next)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        circles_below("a/src/", files)
    }

    fn circles_below(folder: &str, files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let file = |(path, text): &(&str, &str)| SourceFile {
            path: format!("{folder}{path}"),
            text: (*text).to_owned(),
        };
        let found = find(&files.iter().map(file).collect::<Vec<_>>());
        let name = |(path, _): (String, _)| path.trim_start_matches(folder).to_owned();
        found.into_iter().map(|cycle| cycle.into_iter().map(name).collect()).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        let root = ("lib.rs", "mod b; mod c; mod d;");
        let b = ("b.rs", "use crate::c::C;");
        assert_eq!(cycles(&[root, b, ("c.rs", "fn f(b: super::b::B) {}")]), [["b.rs", "c.rs"]]);
        assert_eq!(cycles(&[root, b, ("c.rs", "// crate::b\nuse std::fmt;")]).len(), 0);
        let long = [root, b, ("c.rs", "use super::{d::D};"), ("d.rs", "use crate::b;")];
        assert_eq!(cycles(&long), [["b.rs", "c.rs", "d.rs"]]);
    }

    #[test]
    fn parent_and_child_may_import_each_other_and_tests_may_import_all() {
        let root = ("lib.rs", "mod b; mod c;");
        let b = ("b/mod.rs", "mod inner; use inner::I; struct B; #[cfg(test)] mod tests;");
        let tests = ("b/tests.rs", "use crate::c::C;");
        let c = ("c.rs", "use crate::b::B; #[cfg(test)] mod tests { use crate::b::inner::I; }");
        assert_eq!(cycles(&[root, b, ("b/inner.rs", "use super::B;"), tests, c]).len(), 0);
    }

    #[test]
    fn a_reexport_counts_where_the_item_is_defined() {
        let root = ("lib.rs", "mod b; mod c; pub use b::X;");
        let b = ("b/mod.rs", "mod x; mod y; pub use x::X; pub use y::Y;");
        let x = ("b/x.rs", "struct X;");
        let y = ("b/y.rs", "use super::X; use crate::c::C;");
        // c needs only x, through b.
        assert_eq!(cycles(&[root, b, x, y, ("c.rs", "use crate::b::X;")]).len(), 0);
        assert_eq!(cycles(&[root, b, x, y, ("c.rs", "use crate::b::Y;")]), [["b/y.rs", "c.rs"]]);
        assert_eq!(cycles(&[root, b, x, y, ("c.rs", "use crate::b::{X, Y};")]), [["b/y.rs", "c.rs"]]);
    }

    #[test]
    fn modules_of_a_layered_folder_form_no_circle_behind_a_reexport() {
        let files = [
            ("engine/mod.rs", "mod b; mod c;"),
            ("engine/b/mod.rs", "mod x; pub use x::X; use super::c::C;"),
            ("engine/b/x.rs", "struct X;"),
            ("engine/c.rs", "use super::b::X; struct C;"),
        ];
        assert_eq!(circles_below("mlx-core/src/", &files), [["engine/b/mod.rs", "engine/c.rs"]]);
        assert_eq!(cycles(&files).len(), 0, "no file imports one that imports it");
    }
}
