#!/bin/sh
# Tests get.sh and install.sh with archives whose program is a script. Takes seconds and needs no network: the URLs are file://.
# Usage: tests/install.sh [SHELL], by default sh. The scripts that it writes contain unexpanded variables.
# shellcheck disable=SC2016
set -eu
shell=${1:-sh}
if ! command -v curl >/dev/null; then
    echo "tests/install.sh was skipped: there is no curl"
    exit 0
fi
scripts=$(cd "$(dirname "$0")/../xtask/src/dist" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/install.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM
release=$work/release
mkdir -p "$release" "$work/tmp" "$work/fake"
unset MLX_URL MLX_VERSION MLX_PREFIX

sum() {
    if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi
}

# Makes an archive in the layout of `cargo xtask dist`: pack VERSION TARGET [MINIMUM MACOS].
pack() {
    name=mlx-$1-$2
    mkdir -p "$work/$name/bin" "$work/$name/lib"
    printf '#!/bin/sh\necho "mlx %s for %s"\n' "$1" "$2" >"$work/$name/bin/mlx"
    sed "s/^oldest_macos=$/oldest_macos=${3:-}/" "$scripts/install.sh" >"$work/$name/install.sh"
    chmod +x "$work/$name/bin/mlx" "$work/$name/install.sh"
    echo '{}' >"$work/$name/bill-of-materials.json"
    echo "$1" >"$work/$name/lib/only-in-$1"
    tar -czf "$release/$name.tar.gz" -C "$work" "$name"
    (cd "$release" && sum "$name.tar.gz" >"$name.tar.gz.sha256")
}

# Pretends to be another system: pretend SYSTEM MACHINE VERSION, with the version of macOS or of glibc.
pretend() {
    printf '#!/bin/sh\ncase $1 in -s) echo %s ;; *) echo %s ;; esac\n' "$1" "$2" >"$work/fake/uname"
    printf '#!/bin/sh\necho %s\n' "$3" >"$work/fake/sw_vers"
    printf '#!/bin/sh\ncase $1 in LONG_BIT) echo 64 ;; *) echo glibc %s ;; esac\n' "$3" >"$work/fake/getconf"
    printf '#!/bin/sh\nexit 1\n' >"$work/fake/sysctl"
    chmod +x "$work"/fake/*
}

prefix=$work/home/.local

# Runs get.sh from the standard input, as `curl | sh` does.
get() {
    HOME=$work/home TMPDIR=$work/tmp PATH=$work/fake:$PATH "$shell" -s -- --url "file://$release" "$@" \
        <"$scripts/get.sh" >"$work/output" 2>&1
}

die() {
    echo "tests/install.sh: $1" >&2
    cat "$work/output" >&2
    exit 1
}

prints() {
    grep -qF -- "$1" "$work/output" || die "the output does not contain: $1"
}

nothing_is_left() {
    [ -z "$(ls -A "$work/tmp")" ] || die "temporary files are left"
    [ ! -e "$work/home/.local" ] || die "files are left in $prefix"
}

# The output of a failure must contain the text: refuses TEXT ARGUMENTS...
refuses() {
    text=$1
    shift
    if get "$@"; then die "it should fail: $text"; fi
    prints "$text"
}

mkdir "$work/home"
for version in 0.1.0 0.2.0; do
    pack $version x86_64-unknown-linux-gnu
    pack $version aarch64-unknown-linux-gnu
    pack $version aarch64-apple-darwin-macos14 14.0
    pack $version aarch64-apple-darwin-macos26 26.2
done

# Each system gets its archive. Uninstalling leaves nothing.
while read -r system machine number name; do
    pretend "$system" "$machine" "$number"
    get --version 0.1.0 || die "$system $machine $number fails"
    prints "mlx 0.1.0 for $name"
    prints 'is not on PATH'
    [ "$("$prefix/bin/mlx")" = "mlx 0.1.0 for $name" ] || die "the link does not work"
    get --uninstall || die "uninstalling fails"
    nothing_is_left
done <<'END'
Linux x86_64 2.35 x86_64-unknown-linux-gnu
Linux aarch64 2.41 aarch64-unknown-linux-gnu
Darwin arm64 14.0 aarch64-apple-darwin-macos14
Darwin arm64 15.6.1 aarch64-apple-darwin-macos14
Darwin arm64 26.1 aarch64-apple-darwin-macos14
Darwin arm64 26.2 aarch64-apple-darwin-macos26
Darwin arm64 27.0 aarch64-apple-darwin-macos26
END

# Other systems are refused before anything is downloaded.
while read -r system machine number text; do
    pretend "$system" "$machine" "$number"
    refuses "$text" --version 0.1.0
    nothing_is_left
done <<'END'
Linux x86_64 2.31 this system has glibc 2.31; mlx needs 2.35
Linux riscv64 2.39 the processor is riscv64
Darwin arm64 13.7.8 this is macOS 13.7.8; mlx needs macOS 14
Darwin x86_64 15.1 this Mac has the processor x86_64
FreeBSD amd64 14 the system is FreeBSD
END

# Faulty releases and options.
pretend Linux x86_64 2.36
refuses 'cannot download' --version 9.9.9
refuses 'this copy belongs to no release; give --version'
refuses 'unknown option --prefx' --prefx /
refuses 'is not installed' --uninstall
pack 0.3.0 x86_64-unknown-linux-gnu
echo >>"$release/mlx-0.3.0-x86_64-unknown-linux-gnu.tar.gz"
refuses 'Nothing was installed' --version 0.3.0
echo '<html>' >"$release/mlx-0.3.0-x86_64-unknown-linux-gnu.tar.gz.sha256"
refuses 'contains no checksum' --version 0.3.0
nothing_is_left

# A truncated script does nothing, and does not check its options.
size=$(wc -c <"$scripts/get.sh")
for missing in 2 3 4 5 6 7 8 9 10 11 12 13 14 15 1000; do
    head -c "$((size - missing))" "$scripts/get.sh" >"$work/truncated"
    "$shell" -s -- --prefix "$prefix" <"$work/truncated" >"$work/output" 2>&1 || true
    if grep -q '^get.sh:' "$work/output"; then die "a script without its last $missing bytes runs"; fi
done
nothing_is_left

# A newer version replaces an older one. A version that does not start replaces nothing.
mkdir -p "$prefix/bin"
get --version 0.1.0 || die "installing fails"
get --version 0.2.0 || die "reinstalling fails"
[ "$(ls "$prefix/lib/mlx/lib")" = only-in-0.2.0 ] || die "files of the older version are left"
broken=mlx-0.4.0-x86_64-unknown-linux-gnu
pack 0.4.0 x86_64-unknown-linux-gnu
printf '#!/bin/sh\nexit 127\n' >"$work/$broken/bin/mlx"
tar -czf "$release/$broken.tar.gz" -C "$work" "$broken"
(cd "$release" && sum "$broken.tar.gz" >"$broken.tar.gz.sha256")
refuses 'does not start on this system; nothing was installed' --version 0.4.0
[ "$(ls "$prefix/lib")" = mlx ] || die "an unfinished installation is left"
[ "$("$prefix/bin/mlx")" = 'mlx 0.2.0 for x86_64-unknown-linux-gnu' ] || die "the working version is gone"
# Folders and files of others stay.
echo mine >"$prefix/bin/other"
get --uninstall || die "uninstalling fails"
[ "$(cd "$prefix" && find . | sort | tr '\n' ' ')" = '. ./bin ./bin/other ' ] || die "uninstalling removes too much or too little"
echo mine >"$prefix/bin/mlx"
refuses 'was not installed by this script' --version 0.1.0
refuses 'is not installed' --uninstall
[ "$(cat "$prefix/bin/mlx")" = mine ] && [ ! -e "$prefix/lib" ] || die "a file of another program has changed"
get --version 0.1.0 --prefix "$work/home/a folder" || die "a prefix with a space fails"
PATH="$work/home/a folder/bin:$PATH"
get --version 0.1.0 --prefix "$work/home/a folder" || die "reinstalling the same version fails"
prints 'is on PATH'
get --uninstall --prefix "$work/home/a folder" || die "uninstalling fails"
[ ! -e "$work/home/a folder" ] || die "files are left"
echo "get.sh and install.sh work in $shell"
