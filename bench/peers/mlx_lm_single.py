"""mlx-lm's generate_step on the load of bench/src/single.rs: `mlx_lm_single.py MODEL`."""

import sys

from load import report
from mlx_lm import load
from single import figures

model, _ = load(sys.argv[1])
report(figures(model))
