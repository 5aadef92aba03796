"""The tokens of transformers for texts: `transformers_tokens.py FILE.gguf < TEXTS`. The texts and the printed ids are JSON."""

import json
import os
import pathlib
import sys

from load import report

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import AutoTokenizer, modeling_gguf_pytorch_utils  # noqa: E402


def main():
    path = pathlib.Path(sys.argv[1])
    # transformers requires torch for GGUF files, also to read only their vocabulary.
    modeling_gguf_pytorch_utils.is_torch_available = lambda: True
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    report([tokenizer(text, add_special_tokens=False).input_ids for text in json.load(sys.stdin)])


if __name__ == "__main__":
    main()
