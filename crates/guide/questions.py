"""Writes questions.txt, with one line of phrasings per question. The program suggests them when the guide is not sure.

    python questions.py
"""
from pathlib import Path

from dialogues import SEPARATOR, Corpus

HERE = Path(__file__).resolve().parent
# Questions on these topics are no useful suggestions.
LEFT_OUT = {"elsewhere", "smalltalk"}


def main():
    blocks = [block for block in Corpus(HERE / "corpus").intents if block.topic not in LEFT_OUT]
    phrasings = ([question for question in block.questions if "{" not in question and question[0] != "?"] for block in blocks)
    text = "".join(SEPARATOR.join(known) + "\n" for known in phrasings if known)
    (HERE / "questions.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
