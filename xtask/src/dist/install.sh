#!/bin/sh
# Installs this folder: ./install.sh [PREFIX], by default ~/.local. It needs no root rights and downloads nothing.
set -eu
# The minimum version of macOS; empty in releases for other systems.
oldest_macos=
if [ -n "$oldest_macos" ]; then
    macos=$(sw_vers -productVersion)
    first=$(printf '%s\n' "$oldest_macos" "$macos" | sort -t . -k 1,1n -k 2,2n | head -n 1)
    if [ "$first" != "$oldest_macos" ]; then
        echo "this release needs macOS $oldest_macos or newer; this is macOS $macos" >&2
        exit 1
    fi
fi
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1:-$HOME/.local}
mkdir -p "$prefix/bin" "$prefix/lib"
rm -rf "$prefix/lib/mlx"
cp -R "$here" "$prefix/lib/mlx"
ln -sf ../lib/mlx/bin/mlx "$prefix/bin/mlx"
"$prefix/bin/mlx" --version
case ":$PATH:" in
*":$prefix/bin:"*) ;;
*) echo "add $prefix/bin to PATH to run mlx" ;;
esac
