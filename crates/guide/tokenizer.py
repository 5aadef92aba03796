"""The tokenizer: byte-level BPE trained on the corpus, the chat template, and the encoding of dialogues."""
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, USER, ASSISTANT, SYSTEM, END = SPECIAL = ["<|bos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]

# A user message begins with a space, so that its first word gets the same token as in other positions.
TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role not in ['system', 'user', 'assistant'] %}
{{- raise_exception('unknown role ' + message.role) }}
{%- endif %}
{{- '<|' + message.role + '|>' }}
{%- if message.role != 'assistant' %}
{{- ' ' }}
{%- endif %}
{{- message.content | trim }}
{{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|assistant|>' }}
{%- endif %}
"""


def make(texts, size, folder):
    """Trains the vocabulary and writes tokenizer.json and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))])
    tokenizer.save(str(Path(folder) / "tokenizer.json"))
    config = dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token=BOS, eos_token=END, clean_up_tokenization_spaces=False,
        model_max_length=1024, chat_template=TEMPLATE)
    (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return tokenizer


def load(folder):
    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def encode(tokenizer, turns, system=None):
    """Returns the ids of a dialogue, and for each True if it is part of an answer.

    `turns` are (question, answer). An answer of None ends the dialogue where the model has to answer.
    """
    ids, answered = [tokenizer.token_to_id(BOS)], [False]

    def add(role, text, is_answer):
        inside = tokenizer.encode(text, add_special_tokens=False).ids
        ids.extend([tokenizer.token_to_id(role), *inside, tokenizer.token_to_id(END)])
        answered.extend([False, *[is_answer] * (len(inside) + 1)])

    if system:
        add(SYSTEM, " " + system, False)
    for question, answer in turns:
        add(USER, " " + question, False)
        if answer is None:
            ids.append(tokenizer.token_to_id(ASSISTANT))
            answered.append(False)
        else:
            add(ASSISTANT, answer, True)
    return ids, answered
