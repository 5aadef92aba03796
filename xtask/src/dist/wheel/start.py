"""Starts the program of this package."""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "mlx")
    os.execv(program, sys.argv)
