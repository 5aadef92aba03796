"""Reads the corpus, varies its questions, and makes dialogues for training and evaluation.

A file of corpus/ has blocks, separated by empty lines. The lines of a block are

    Q:      phrasings of a question, with " | " between them
    H:      held-out phrasings: only for the evaluation, never trained on
    A:      an answer; with several lines, each is a right answer; "A: ^" is the answer of the previous block, "A: @question" that of a block
    NAME:   another lower-case word, such as "example:": the answer to this follow-up question (see followups.txt)
    after:  questions; this block is a follow-up question to one of them
    K:      this block has the phrasings of such a NAME; A is the answer for blocks without that NAME
"""
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

SEPARATOR = " | "


@dataclass
class Block:
    topic: str
    questions: list = field(default_factory=list)
    held_out: list = field(default_factory=list)
    answers: list = field(default_factory=list)
    after: list = field(default_factory=list)
    extra: dict = field(default_factory=dict)
    kind: str = ""
    # How often one pass over the corpus has each phrasing. A continued training raises it for blocks that the model does not know.
    copies: int = 1


@dataclass
class Case:
    """An evaluation case: the previous turns, the question, and the right answers."""
    topic: str
    before: list
    question: str
    answers: list


def key(text):
    """Returns a phrasing without case and punctuation."""
    return re.sub(r"[^a-z0-9{}]+", "", text.lower()) or text.strip()


def name_of(text):
    """Returns the key of a question. /seed and --seed differ."""
    return text.lower().rstrip("?!. ") or text.strip()


class Corpus:
    def __init__(self, folder):
        self.slots = {}
        for line in lines(folder / "slots.txt"):
            name, words = line.split(": ")
            self.slots[name] = words.split(", ")
        blocks = [block for path in sorted(folder.glob("*.txt")) if path.name != "slots.txt" for block in read(path)]
        self.kinds = {block.kind: block for block in blocks if block.kind}
        self.seconds = [block for block in blocks if block.after]
        self.intents = [block for block in blocks if not block.kind and not block.after]
        self.where = {name_of(question): block for block in self.intents for question in block.questions}
        for block in self.seconds:
            block.after = [self.find(question) for question in block.after]
        for block in blocks:
            block.answers = [it for text in block.answers for it in (self.find(text[1:]).answers if text[0] == "@" else [text])]
        self.held_keys = {key(question) for block in blocks for question in block.held_out}
        self.check(blocks)

    def find(self, question):
        if name_of(question) not in self.where:
            raise SystemExit(f"no block has the question {question!r}")
        return self.where[name_of(question)]

    def check(self, blocks):
        """Checks that a question has one answer, and that held-out phrasings are not trained on."""
        wrong, seen, trained = [], {}, {key(question) for block in self.intents for question in block.questions}
        for block in blocks:
            name = f"{block.topic}: {block.questions[:1]}"
            if not block.held_out or not block.answers or len(block.questions) + len(block.held_out) < 7:
                wrong.append(f"{name}: needs answers, held-out phrasings and at least seven in all")
            if set(block.extra) - set(self.kinds):
                wrong.append(f"{name}: nobody asks for {set(block.extra) - set(self.kinds)}")
            apart = block.after or block.kind
            known = {key(question) for question in block.questions} if apart else trained
            wrong += [f"{name}: {it!r} is held out and trained on" for it in block.held_out if key(it) in known]
            for question in [] if apart else block.questions + block.held_out:
                other = seen.setdefault(name_of(question), block)
                if other.answers != block.answers:
                    wrong.append(f"{name}: {question!r} is in {other.topic}, too")
        if wrong:
            raise SystemExit("\n".join(wrong))

    def fill(self, text, rng):
        return re.sub(r"\{(\w+)\}", lambda slot: rng.choice(self.slots[slot[1]]), text)

    def texts(self):
        """Returns the training text of the tokenizer, without held-out phrasings."""
        everything = [*self.intents, *self.seconds, *self.kinds.values()]
        questions = [" " + question for block in everything for question in block.questions]
        answers = [answer for block in everything for answer in [*block.answers, *block.extra.values()]]
        words = [" " + word for words in self.slots.values() for word in words]
        return questions + answers * 3 + words

    def say(self, block, rng):
        """Returns a varied phrasing of a block, and an answer."""
        return self.vary(rng.choice(block.questions), block, rng), rng.choice(block.answers)

    def vary(self, question, block, rng):
        question = self.fill(question, rng)
        own = block.topic not in ("elsewhere", "smalltalk", "dialogues", "followups")
        varied = vary(question, rng, own)
        # Variation must not produce a held-out phrasing.
        return question if key(varied) in self.held_keys else varied

    def items(self, rng):
        """Yields one shuffled pass over the corpus: (turns, True if they must begin a dialogue)."""
        made = []
        for block in self.intents:
            for question in block.questions:
                # Blocks with slots come twice, with different words.
                for _ in range((2 if "{" in question else 1) * block.copies):
                    made.append(([(self.vary(question, block, rng), rng.choice(block.answers))], False))
            for kind, answer in block.extra.items():
                for _ in range(2 * block.copies):
                    made.append(([self.say(block, rng), (self.say(self.kinds[kind], rng)[0], answer)], False))
        for block in self.seconds:
            for question in block.questions:
                first = self.say(rng.choice(block.after), rng)
                made.append(([first, (self.vary(question, block, rng), rng.choice(block.answers))], False))
        for kind, block in self.kinds.items():
            without = [other for other in self.intents if kind not in other.extra]
            for question in block.questions:
                turn = (self.vary(question, block, rng), block.answers[0])
                made.append(([turn], True))
                made.append(([self.say(rng.choice(without), rng), turn], False))
        rng.shuffle(made)
        return made

    def dialogues(self, seed):
        """Yields endless dialogues of one or more items, some with a system prompt: (turns, system)."""
        rng = random.Random(seed)
        while True:
            turns = []
            for item, first in self.items(rng):
                if turns and (first or len(turns) >= 4 or rng.random() < 0.6):
                    yield turns, rng.choice(SYSTEM) if rng.random() < 0.12 else None
                    turns = []
                turns = turns + item
            yield turns, None

    def cases(self):
        """Returns all held-out cases."""
        rng = random.Random(0)
        cases = []
        first = lambda block: (self.fill(block.questions[0], rng), block.answers[0])
        for block in self.intents:
            cases += [Case(block.topic, [], question, block.answers) for question in block.held_out]
            for kind, answer in block.extra.items():
                question = rng.choice(self.kinds[kind].held_out)
                cases.append(Case("followups", [first(block)], question, [answer]))
        for block in self.seconds:
            for index, question in enumerate(block.held_out):
                before = first(block.after[index % len(block.after)])
                cases.append(Case("dialogues", [before], question, block.answers))
        for block in self.kinds.values():
            cases += [Case("followups", [], question, block.answers) for question in block.held_out]
        return cases


def lines(path):
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and not line.startswith("#")]


def read(path):
    """Returns the blocks of a file."""
    text = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    blocks = []
    for part in re.split(r"\n\s*\n", text.strip()):
        block = Block(path.stem)
        for line in part.splitlines():
            name, _, value = line.partition(": ")
            value = value.strip()
            if name == "A":
                block.answers += blocks[-1].answers if value == "^" else [value]
            elif name == "K":
                block.kind = value
            elif name in ("Q", "H", "after"):
                {"Q": block.questions, "H": block.held_out, "after": block.after}[name].extend(
                    it.strip() for it in value.split(SEPARATOR))
            elif re.fullmatch("[a-z]+", name) and value:
                block.extra[name] = value
            else:
                raise SystemExit(f"{path.name}: cannot be understood: {line}")
        blocks.append(block)
    return blocks


# ------------------------------------------------------------------------------------------------ variation
SYSTEM = [
    "You are a helpful assistant.", "Be brief.", "Answer in one sentence.", "You are the guide of this tool.",
    "Be polite.", "You are a friendly assistant who answers questions.", "Answer truthfully and in plain words."]
# Beginnings of questions, and their alternatives.
HOW = ["how do I ", "how can I ", "how to ", "how do you ", "how does one ", "i want to ", "can you tell me how to ",
       "please tell me how to ", "is there a way to ", "what is the way to ", "how would I "]
WHAT = ["what is ", "what's ", "whats ", "explain ", "can you explain ", "tell me about ", "please explain "]
OPENINGS = [
    (HOW[:4], HOW), (WHAT[:4], WHAT), (["which "], ["what ", "which "]),
    (["show me ", "give me "], ["show ", "give me ", "show me ", "i want to see "]),
    (["why is "], ["why's ", "how come ", "what is the reason that "]),
    (["does it support "], ["is there support for ", "do you support ", "can it do ", "does mlx support "]),
    (["can I "], ["could I ", "am I able to ", "is it possible to ", "may I "])]
BEFORE = [
    "please", "hey,", "hi,", "hello,", "ok,", "so,", "and", "well,", "excuse me,", "quick question:", "question:", "um,",
    "can you tell me", "tell me", "I would like to know:", "just wondering,", "sorry,", "hi there,", "now"]
BEHIND = ["please", "pls", "thanks", "thank you", "exactly", "then", "now"]
BEHIND_OWN = ["in mlx", "with mlx", "here", "with this tool", "in this program"]
SMALL = {"the", "a", "an", "do", "i", "is", "to", "of", "my", "me", "can", "it", "does", "are", "in"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def vary(text, rng, own):
    """Returns another way to type a question. `own` is True for questions about the tool."""
    text = text.replace("`", "")
    words = text.split()
    if len(words) >= 3:
        if rng.random() < 0.3:
            text = other_opening(text, rng)
        if rng.random() < 0.12:
            text = without_a_word(text, rng)
        if rng.random() < 0.1:
            text = f"{rng.choice(BEFORE)} {text}"
        if rng.random() < 0.1 and text[-1].isalnum():
            text = f"{text} {rng.choice(BEHIND_OWN if own and rng.random() < 0.5 else BEHIND)}"
    if rng.random() < (0.2 if len(words) >= 3 else 0.08):
        text = typo(text, rng)
    if rng.random() < 0.5:
        text = text.rstrip("?.!") or text
    elif rng.random() < 0.4 and text[-1].isalnum():
        text += rng.choice("???.!")
    draw = rng.random()
    if draw < 0.35:
        return text.lower()
    if draw < 0.5:
        return text[:1].upper() + text[1:]
    return text.upper() if draw < 0.53 else text


def other_opening(text, rng):
    for openings, others in OPENINGS:
        for opening in openings:
            if text.lower().startswith(opening.lower()):
                return rng.choice(others) + text[len(opening):]
    return text


def without_a_word(text, rng):
    words = text.split()
    places = [place for place, word in enumerate(words) if word.lower() in SMALL]
    if len(words) >= 4 and places:
        del words[rng.choice(places)]
    return " ".join(words)


def typo(text, rng):
    """Adds a typing error to a plain word. Flags, paths and numbers stay unchanged."""
    words = text.split(" ")
    places = [place for place, word in enumerate(words) if len(word) >= 4 and word.isalpha()]
    if not places:
        return text
    place = rng.choice(places)
    word = words[place]
    at = rng.randrange(1, len(word) - 1)
    words[place] = rng.choice([
        word[:at] + word[at + 1] + word[at] + word[at + 2:], word[:at] + word[at + 1:], word[:at] + word[at] + word[at:],
        word[:at] + rng.choice(LETTERS) + word[at + 1:]])
    return " ".join(words)
