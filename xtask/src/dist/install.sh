#!/bin/sh
# Installs this folder: ./install.sh [PREFIX], by default ~/.local. It needs no root rights and downloads nothing.
set -eu
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
