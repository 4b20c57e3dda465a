"""Train the embedded model `tang` and write it in Hugging Face layout.

    python training/train_tang.py training/tang_corpus.json tinyinfer/models/tang

A quarter of the texts are famous poems, so that the model recites them; the others teach it to go on
when the prompt is new. There is no beginning-of-text token: a text is `poem<eos>`, or `写诗poem<eos>`
in three cases of ten, and its first character stands at position 0.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

SEED = 7
BATCH = 32
PEAK_LEARNING_RATE = 3e-3
FAMOUS_SHARE, INSTRUCTION_SHARE = 0.25, 0.30
INSTRUCTION = "写诗"
UNKNOWN, END = "<unk>", "<eos>"


def build_tokenizer(characters: str) -> Tokenizer:
    """One id per character; `<unk>` is there so that unknown characters can be noticed and refused."""
    vocabulary = {piece: index for index, piece in enumerate([UNKNOWN, END, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([UNKNOWN, END])
    return tokenizer


def draw_batch(corpus: dict, tokenizer: Tokenizer, generator: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """`BATCH` texts, right-padded; padding has the label -100, which the loss ignores."""
    end = tokenizer.token_to_id(END)
    rows = []
    for _ in range(BATCH):
        famous = generator.random() < FAMOUS_SHARE
        poem = generator.choice(corpus["famous"] if famous else corpus["poems"])
        text = (INSTRUCTION if generator.random() < INSTRUCTION_SHARE else "") + poem
        rows.append(tokenizer.encode(text).ids + [end])
    width = max(map(len, rows))
    tokens = torch.tensor([row + [end] * (width - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    return tokens, labels


def train(corpus: dict, tokenizer: Tokenizer, steps: int) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    generator = random.Random(SEED)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    warmup = 200
    started, smoothed = time.perf_counter(), None
    for step in range(steps):
        progress = max(0, step - warmup) / max(1, steps - warmup)
        learning_rate = (
            PEAK_LEARNING_RATE * min(1, (step + 1) / warmup) * (0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)
        )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        tokens, labels = draw_batch(corpus, tokenizer, generator)
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smoothed = loss.item() if smoothed is None else 0.99 * smoothed + 0.01 * loss.item()
        if (step + 1) % 250 == 0:
            print(f"step {step + 1}/{steps}: loss {smoothed:.3f}, {time.perf_counter() - started:.0f} s", flush=True)
    return model


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": UNKNOWN, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=9_000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    corpus = json.loads(arguments.corpus.read_text(encoding="utf-8"))
    tokenizer = build_tokenizer(corpus["characters"])
    save(train(corpus, tokenizer, arguments.steps), tokenizer, arguments.output)
