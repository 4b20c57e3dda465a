"""Train the page-sized model `toy` and write it in Hugging Face layout.

    python training/train_toy.py tinyinfer/models/toy

Two layers, two heads, head_dim 4: a whole KV cache of it fits on a page. It learns the answers below by
heart, in seconds on one core. There is no beginning-of-text token and no separator: a text is
`prompt + answer + <eos>`, and only the answer and the end are learned. Each answer is its prompt's own, so
the model has to read the prompt.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

SEED = 7
STEPS = 300
PEAK_LEARNING_RATE = 1e-2
UNKNOWN, END = "<unk>", "<eos>"
CHARACTERS = "写诗秋天的白日山河海"
ANSWERS = {
    "写诗": "秋天的诗",
    "写秋": "秋天的山",
    "写天": "天的白日",
    "写山": "白日的山",
    "写河": "白日的河海",
    "诗": "写诗的秋天",
    "秋": "天",
    "白": "日",
}


def build_tokenizer() -> Tokenizer:
    """One id per character; `<unk>` is there so that unknown characters can be noticed and refused."""
    vocabulary = {piece: index for index, piece in enumerate([UNKNOWN, END, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([UNKNOWN, END])
    return tokenizer


def build_batch(tokenizer: Tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """All texts at once, right-padded; prompt and padding have the label -100, which the loss ignores."""
    end = tokenizer.token_to_id(END)
    rows = [(tokenizer.encode(prompt).ids, tokenizer.encode(answer).ids + [end]) for prompt, answer in ANSWERS.items()]
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens = [prompt + answer + [end] * (width - len(prompt) - len(answer)) for prompt, answer in rows]
    labels = [[-100] * len(prompt) + answer + [-100] * (width - len(prompt) - len(answer)) for prompt, answer in rows]
    return torch.tensor(tokens), torch.tensor(labels)


def train(tokenizer: Tokenizer, steps: int) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=4,
        intermediate_size=16,
        max_position_embeddings=32,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=None,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=PEAK_LEARNING_RATE / 50)
    tokens, labels = build_batch(tokenizer)
    for step in range(steps):
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}/{steps}: loss {loss.item():.4f}", flush=True)
    return model


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": UNKNOWN, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    save(train(tokenizer, arguments.steps), tokenizer, arguments.output)
