#!/bin/sh
# Installs this folder: ./install.sh [PREFIX], by default ~/.local. It needs no root rights and downloads nothing.
# ./install.sh --uninstall [PREFIX] removes what was installed.
set -eu
# The minimum version of macOS; empty in releases for other systems.
oldest_macos=

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

check_macos() {
    [ -n "$oldest_macos" ] || return 0
    macos=$(sw_vers -productVersion)
    # Versions without a minor number get one, so that 14 is not older than 14.0.
    first=$(printf '%s\n' "$oldest_macos" "$macos.0" | sort -t . -k 1,1n -k 2,2n | head -n 1)
    [ "$first" = "$oldest_macos" ] ||
        fail "this release needs macOS $oldest_macos or newer; this is macOS $macos"
}

# Fails if another program owns one of the two paths.
check_owner() {
    if [ -e "$library" ] && [ ! -f "$library/bill-of-materials.json" ]; then
        fail "$library was not installed by this script; move it, or choose another prefix"
    fi
    if [ -e "$link" ] || [ -L "$link" ]; then
        [ "$(readlink "$link")" = "$target" ] ||
            fail "$link was not installed by this script; move it, or choose another prefix"
    fi
}

# Removes those of the created folders that are empty.
remove_folders() {
    for folder in $created; do
        rmdir "$prefix/$folder" 2>/dev/null || true
    done
    case " $created " in
    *" . "*) rmdir "$prefix" 2>/dev/null || true ;;
    esac
}

uninstall() {
    [ -e "$library" ] || [ -L "$link" ] || fail "mlx is not installed in $prefix"
    check_owner
    created=$(cat "$library/created-folders" 2>/dev/null || true)
    rm -rf "$library"
    rm -f "$link"
    remove_folders
    echo "removed $library and $link"
}

# Runs at every exit. `new` is empty after a success.
# shellcheck disable=SC2329 # The trap calls it.
clean() {
    [ -n "$new" ] || return 0
    rm -rf "$new"
    remove_folders
}

install() {
    check_macos
    check_owner
    here=$(cd "$(dirname "$0")" && pwd -P)
    if [ -d "$library" ] && [ "$here" = "$(cd "$library" && pwd -P)" ]; then
        fail "$library is already installed"
    fi
    created=
    for folder in bin lib .; do
        [ -d "$prefix/$folder" ] || created="$created $folder"
    done
    new=$library.new.$$
    trap clean EXIT
    trap 'exit 130' HUP INT TERM
    mkdir -p "$prefix/bin" "$prefix/lib" || fail "cannot write to $prefix; choose another prefix"
    cp -R "$here" "$new" || fail "cannot write to $prefix/lib; choose another prefix"
    # The check runs before an older version is replaced.
    "$new/bin/mlx" --version || fail "the program does not start on this system; nothing was installed"
    if [ -f "$library/created-folders" ]; then
        cp "$library/created-folders" "$new/created-folders"
    else
        echo "$created" >"$new/created-folders"
    fi
    trap '' HUP INT TERM
    rm -rf "$library"
    mv "$new" "$library"
    ln -sf "$target" "$link"
    new=
}

# Reports whether the shell finds the installed program.
report_path() {
    case ":$PATH:" in
    *":$prefix/bin:"*)
        found=$(command -v mlx || true)
        if [ "$found" = "$link" ]; then
            echo "installed in $prefix; $prefix/bin is on PATH"
        else
            echo "installed in $prefix; $found comes first on PATH"
        fi
        ;;
    *)
        echo "installed in $prefix; $prefix/bin is not on PATH. Add this line to your shell's profile:"
        echo "    export PATH=\"$prefix/bin:\$PATH\""
        ;;
    esac
}

main() {
    action=install
    if [ "${1:-}" = --uninstall ]; then
        action=uninstall
        shift
    fi
    case "${1:-}" in
    -*) fail "unknown option $1; usage: install.sh [--uninstall] [PREFIX]" ;;
    esac
    prefix=${1:-${HOME:?set HOME, or give a prefix}/.local}
    case $prefix in
    /*) ;;
    *) prefix=$PWD/$prefix ;;
    esac
    library=$prefix/lib/mlx
    link=$prefix/bin/mlx
    target=../lib/mlx/bin/mlx
    if [ "$action" = uninstall ]; then
        uninstall
    else
        install
        report_path
    fi
    # Uninstalling has removed this file, so the shell must not read on.
    exit 0
}

main "$@"
