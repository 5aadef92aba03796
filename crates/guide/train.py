"""Trains the guide: tokenizer, model, Hugging Face files, evaluation. The seed and the order are fixed, so results are reproducible.

    python train.py                          # all steps; writes to the folder of this file
    python train.py --continue --steps 600   # trains the exported model on the current corpus; keeps the tokenizer
    python train.py --evaluate-only          # evaluates the exported files again
    python train.py --steps 5 --limit 5 --out FOLDER
"""
import argparse
import itertools
import json
import math
import random
import time
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F

import doubt
import model as network
import tokenizer as tokens
from dialogues import Case, Corpus

HERE = Path(__file__).resolve().parent
SEED = 20
VOCABULARY = 2048
STEPS = 3500
# Batches alternate between these row lengths, so that short chats are frequent and all positions of the context are trained.
LENGTHS = (256, 512, 256, 1024)
TOKENS_PER_STEP = 2048
RATE, CONTINUED_RATE, LAST_RATE, WARM_UP, DECAY, CLIP = 2e-3, 8e-4, 1e-4, 150, 0.05, 1.0
QUESTION_WEIGHT = 0.1
# A continued training repeats the blocks that the model does not know yet.
COPIES_OF_UNKNOWN = 4
LONGEST_ANSWER = 200
BATCH = 64


def rows(corpus, tokenizer, seed):
    """Returns a function that makes rows of a given length: ids and their loss weights. Dialogues are packed without masks."""
    stream = corpus.dialogues(seed)

    def row(length):
        ids, weights = [], []
        while len(ids) <= length:
            turns, system = next(stream)
            more, answered = tokens.encode(tokenizer, turns, system)
            ids += more
            weights += [1.0 if it else QUESTION_WEIGHT for it in answered]
        return ids[: length + 1], weights[: length + 1]

    return row


def rate(step, steps, peak):
    warm_up = min(WARM_UP, steps // 5)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return LAST_RATE + (peak - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done))


def train(model, corpus, tokenizer, steps, peak, seed):
    """Trains the model with a learning rate that rises to `peak` and falls again. `seed` sets the order of the dialogues."""
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters, {steps} steps of {TOKENS_PER_STEP} tokens")
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    norms = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [dict(params=matrices, weight_decay=DECAY), dict(params=norms, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=True)
    row, begin, recent = rows(corpus, tokenizer, seed), time.time(), []
    for step in range(steps):
        length = LENGTHS[step % len(LENGTHS)]
        ids, weights = zip(*(row(length) for _ in range(TOKENS_PER_STEP // length)))
        ids, weights = torch.tensor(ids), torch.tensor(weights)[:, 1:]
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, peak)
        logits = model.logits(model(ids[:, :-1]))
        losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (losses * weights.flatten()).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        answers = losses.detach()[weights.flatten() == 1.0]
        recent.append(float(answers.mean()))
        if (step + 1) % 50 == 0 or step + 1 == steps:
            mean, seconds = sum(recent) / len(recent), (time.time() - begin) / (step + 1)
            print(f"step {step + 1}: loss of answers {mean:.4f}, {seconds:.2f} s a step", flush=True)
            recent.clear()


def answers(model, tokenizer, cases):
    """Answers cases greedily. Yields each case with its answer and the probability of the answer's least likely token."""
    end = tokenizer.token_to_id(tokens.END)
    prompts = [tokens.encode(tokenizer, [*case.before, (case.question, None)])[0] for case in cases]
    order = sorted(range(len(cases)), key=lambda index: (len(prompts[index]), index))
    for _, group in itertools.groupby(order, key=lambda index: len(prompts[index])):
        group = list(group)
        for batch in (group[at : at + BATCH] for at in range(0, len(group), BATCH)):
            found = model.greedy([prompts[index] for index in batch], end, LONGEST_ANSWER)
            for index, ids, likely in zip(batch, *found):
                yield cases[index], tokenizer.decode(ids, skip_special_tokens=True).strip(), likely


def repeat_unknown(corpus, model, tokenizer):
    """Makes the blocks frequent whose first question the model answers wrongly."""
    rng = random.Random(SEED)
    blocks = {corpus.fill(block.questions[0], rng): block for block in corpus.intents}
    cases = [Case(block.topic, [], question, block.answers) for question, block in blocks.items()]
    unknown = [blocks[case.question] for case, answer, _ in answers(model, tokenizer, cases) if answer not in case.answers]
    for block in unknown:
        block.copies = COPIES_OF_UNKNOWN
    print(f"{len(unknown)} of {len(cases)} blocks are not known yet", flush=True)


def evaluate(corpus, folder, limit):
    """Answers the held-out cases with the exported files. An answer is right if it equals a right answer."""
    model, tokenizer = network.load(folder), tokens.load(folder)
    cases = corpus.cases()
    if limit:
        cases = cases[:: max(1, len(cases) // limit)][:limit]
    right, asked, wrong, outcomes = Counter(), Counter(), [], []
    for case, answer, likely in answers(model, tokenizer, cases):
        asked[case.topic] += 1
        outcomes.append((likely, answer in case.answers))
        if answer in case.answers:
            right[case.topic] += 1
        else:
            wrong.append((case, answer, likely))
    total, good = sum(asked.values()), sum(right.values())
    rates = {topic: dict(held_out=asked[topic], right=right[topic]) for topic in sorted(asked)}
    report = dict(held_out=total, right=good, rate=round(good / max(1, total), 4), doubt=doubt.report(outcomes), by_topic=rates)
    place = folder.parent
    (place / "evaluation.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    with open(place / "wrong.log", "w", encoding="utf-8") as log:
        for case, answer, likely in wrong:
            before = "".join(f"({question}) " for question, _ in case.before)
            log.write(f"{case.topic}: {before}{case.question}\n  said:  {answer} ({likely:.3f})\n  right: {case.answers[0]}\n")
    print(json.dumps(report))


def main():
    parser = argparse.ArgumentParser(description="Train the guide, export it, and evaluate it.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=HERE / "model", help="the folder of the model; reports are written to its parent folder")
    parser.add_argument("--continue", dest="continued", action="store_true", help="start from the exported model and tokenizer")
    parser.add_argument("--evaluate-only", action="store_true")
    parser.add_argument("--limit", type=int, help="evaluate only N held-out phrasings")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; the number affects the exact result")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    corpus = Corpus(HERE / "corpus")
    folder = arguments.out.resolve()
    if not arguments.evaluate_only:
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(SEED)
        if arguments.continued:
            tokenizer, model = tokens.load(folder), network.load(folder)
            repeat_unknown(corpus, model, tokenizer)
            train(model.train(), corpus, tokenizer, arguments.steps, CONTINUED_RATE, SEED + 1)
        else:
            tokenizer = tokens.make(corpus.texts(), VOCABULARY, folder)
            model = network.Llama(network.Shape(vocab=tokenizer.get_vocab_size()))
            train(model, corpus, tokenizer, arguments.steps, RATE, SEED)
        bos, eos = (tokenizer.token_to_id(token) for token in (tokens.BOS, tokens.END))
        network.export(model, folder, bos, eos)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{folder.name}: {size / 1e6:.2f} MB")
    evaluate(corpus, folder, arguments.limit)


if __name__ == "__main__":
    main()
