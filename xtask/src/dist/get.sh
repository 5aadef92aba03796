#!/bin/sh
# Downloads a release of mlx for this machine, checks its checksum and installs it without root rights:
#
#     curl -fsSL URL/get.sh | sh
#     curl -fsSL URL/get.sh | sh -s -- --prefix DIR
#     curl -fsSL URL/get.sh | sh -s -- --uninstall
#
# docs/releases.md describes the options.
set -eu

# The release workflow fills in these two lines: the URL of the folder with the archives, and their version.
released_url=
released_version=
# The minimum version of glibc for the archives for Linux. The release workflow compares it with their files.
oldest_glibc=2.35

usage() {
    cat <<'END'
usage: get.sh [--prefix DIR] [--url URL] [--version VERSION] [--uninstall]

  --prefix DIR       install into DIR/lib/mlx and link DIR/bin/mlx [MLX_PREFIX; default: ~/.local]
  --url URL          the folder with the archives [MLX_URL; default: this release]
  --version VERSION  the version of the archive [MLX_VERSION; default: this release]
  --uninstall        remove what was installed into DIR
END
}

fail() {
    echo "get.sh: $1" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# Succeeds if the version $1, such as 14.6.1, is at least $2, such as 14.0.
is_at_least() {
    major=${1%%.*}
    minor=${1#"$major"}
    minor=${minor#.}
    minor=${minor%%[!0-9]*}
    case $major in
    '' | *[!0-9]*) fail "cannot read the version $1" ;;
    esac
    [ "$major" -gt "${2%%.*}" ] || { [ "$major" -eq "${2%%.*}" ] && [ "${minor:-0}" -ge "${2#*.}" ]; }
}

# Prints the target in the name of the archive for this Mac.
macos_target() {
    machine=$1
    # A shell under Rosetta reports x86_64 on Apple silicon.
    if [ "$machine" = x86_64 ] && [ "$(sysctl -n sysctl.proc_translated 2>/dev/null)" = 1 ]; then
        machine=arm64
    fi
    [ "$machine" = arm64 ] || fail "this Mac has the processor $machine; mlx needs Apple silicon (M1 or newer)"
    macos=$(sw_vers -productVersion) || fail "cannot read the version of macOS with sw_vers"
    if is_at_least "$macos" 26.2; then
        echo aarch64-apple-darwin-macos26
    elif is_at_least "$macos" 14.0; then
        echo aarch64-apple-darwin-macos14
    else
        fail "this is macOS $macos; mlx needs macOS 14 or newer"
    fi
}

# Fails if the C library is not glibc, or is too old. If the version is unknown, the installation tries to start the program.
check_glibc() {
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || glibc=$(ldd --version 2>&1 | head -n 1) || true
    case $glibc in
    *musl*) fail "this system uses the C library musl; mlx needs glibc $oldest_glibc or newer" ;;
    *[0-9].[0-9]*) ;;
    *)
        for loader in /lib/ld-musl-*; do
            [ ! -e "$loader" ] || fail "this system uses the C library musl; mlx needs glibc $oldest_glibc or newer"
        done
        return 0
        ;;
    esac
    glibc=${glibc##* }
    is_at_least "$glibc" "$oldest_glibc" ||
        fail "this system has glibc $glibc; mlx needs $oldest_glibc or newer (Debian 12, Ubuntu 22.04, Fedora 36)"
}

linux_target() {
    [ "$(getconf LONG_BIT 2>/dev/null)" != 32 ] || fail "this is a 32-bit system; mlx needs a 64-bit one"
    case $1 in
    x86_64 | amd64) processor=x86_64 ;;
    aarch64 | arm64) processor=aarch64 ;;
    *) fail "the processor is $1; there are archives for x86_64 and aarch64" ;;
    esac
    check_glibc
    echo "$processor-unknown-linux-gnu"
}

# Prints the target in the name of the archive for this machine.
target() {
    system=$(uname -s)
    machine=$(uname -m)
    case $system in
    Darwin) macos_target "$machine" ;;
    Linux) linux_target "$machine" ;;
    *) fail "the system is $system; there are archives for macOS and Linux (on Windows, use WSL)" ;;
    esac
}

# Downloads a file of the release into the temporary folder. A redirection must not lead from https to http.
download() {
    if has curl; then
        case $url in
        https:*) curl -fsSL --proto '=https' --tlsv1.2 -o "$folder/$1" "$url/$1" ;;
        *) curl -fsSL -o "$folder/$1" "$url/$1" ;;
        esac
    elif has wget; then
        wget -q -O "$folder/$1" "$url/$1"
    else
        fail "install curl or wget"
    fi || fail "cannot download $url/$1"
}

# Prints the SHA-256 of a file.
checksum() {
    if has sha256sum; then
        sha256sum <"$1"
    elif has shasum; then
        shasum -a 256 <"$1"
    else
        fail "install sha256sum or shasum"
    fi
}

verify() {
    read -r expected _ <"$folder/$1.sha256" || true
    case $expected in
    *[!0-9a-f]* | '') fail "$url/$1.sha256 contains no checksum" ;;
    esac
    actual=$(checksum "$folder/$1")
    actual=${actual%% *}
    [ "$actual" = "$expected" ] ||
        fail "$url/$1 has the SHA-256 $actual; it must be $expected. Nothing was installed"
}

main() {
    url=${MLX_URL:-$released_url}
    version=${MLX_VERSION:-$released_version}
    prefix=${MLX_PREFIX:-${HOME:+$HOME/.local}}
    uninstall=false
    while [ $# -gt 0 ]; do
        case $1 in
        --prefix | --url | --version)
            [ -n "${2:-}" ] || fail "$1 needs a value"
            case $1 in
            --prefix) prefix=$2 ;;
            --url) url=$2 ;;
            --version) version=$2 ;;
            esac
            shift
            ;;
        --uninstall) uninstall=true ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) fail "unknown option $1; see --help" ;;
        esac
        shift
    done
    [ -n "$prefix" ] || fail "HOME is not set; give --prefix"
    if [ "$uninstall" = true ]; then
        [ -f "$prefix/lib/mlx/install.sh" ] || fail "mlx is not installed in $prefix"
        exec sh "$prefix/lib/mlx/install.sh" --uninstall "$prefix"
    fi
    url=${url%/}
    [ -n "$url" ] || fail "this copy belongs to no release; give --url or MLX_URL"
    [ -n "$version" ] || fail "this copy belongs to no release; give --version or MLX_VERSION"
    # In a separate assignment, a failure of the function ends the script.
    target=$(target)
    name=mlx-$version-$target
    folder=
    trap '[ -z "$folder" ] || rm -rf "$folder"' EXIT
    trap 'exit 130' HUP INT TERM
    folder=$(mktemp -d "${TMPDIR:-/tmp}/mlx.XXXXXX")
    echo "downloading $url/$name.tar.gz"
    download "$name.tar.gz.sha256"
    download "$name.tar.gz"
    verify "$name.tar.gz"
    tar -xzf "$folder/$name.tar.gz" -C "$folder" || fail "cannot unpack $name.tar.gz"
    [ -f "$folder/$name/install.sh" ] || fail "$name.tar.gz contains no $name/install.sh"
    # The standard input may be this script.
    sh "$folder/$name/install.sh" "$prefix" </dev/null
}

# A download that ends before the last brace is a syntax error, so it does nothing.
{ main "$@"; }
