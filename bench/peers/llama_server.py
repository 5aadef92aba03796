"""Runs a command on llama-server: `llama_server.py FOLDER COMMAND WITH {llama-server}`. The package llama-cpp-python contains its source but not
the program, so the first run compiles it into the folder."""

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys

PACKAGE = "llama-cpp-python"
VERSION = importlib.metadata.version(PACKAGE)
# Without these options the build downloads the server's page and needs a system library for TLS.
OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_BUILD_TESTS=OFF"]


def run(*command):
    subprocess.run(list(map(str, command)), check=True, stdout=sys.stderr)


def source(folder):
    """Returns the folder of llama.cpp's source in the installed package."""
    run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE, "--dest", folder, f"{PACKAGE}=={VERSION}")
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder)
    (found,) = folder.glob("*/vendor/llama.cpp")
    return found


def build(program):
    """Compiles llama.cpp for this machine's processor. Moves the program into place last, so that an unfinished build is never used."""
    work = program.with_name(f"{program.name}.build")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    tools = pathlib.Path(sys.executable).parent
    run(tools / "cmake", "-S", source(work), "-B", work / "made", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DBUILD_SHARED_LIBS=OFF", *OPTIONS)
    run(tools / "cmake", "--build", work / "made", "--target", "llama-server")
    os.replace(work / "made/bin/llama-server", program)
    shutil.rmtree(work)


def main():
    folder, *command = sys.argv[1:]
    program = pathlib.Path(folder) / f"llama-server-{VERSION}"
    if not program.exists():
        build(program)
    subprocess.run([part.replace("{llama-server}", str(program)) for part in command], check=True)


if __name__ == "__main__":
    main()
