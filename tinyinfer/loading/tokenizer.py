"""Text to token ids and back, through the `tokenizers` library."""

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers
from tokenizers.decoders import DecodeStream

from tinyinfer.errors import BadInput


class Tokenizer:
    """A tokenizer that refuses what it cannot say, instead of dropping it or replacing it by `<unk>`."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        chat_template: str | None = None,
        bos_token: str = "",
        eos_token: str = "",
    ):
        # A tokenizer.json may carry settings of its training run that would cut or fill every prompt.
        inner.no_truncation()
        inner.no_padding()
        self.inner = inner
        self.chat_template = chat_template
        self.template_tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._unknown_id = _unknown_id(inner)
        self._missing_bytes = _missing_bytes(inner)
        # With neither an unknown token nor bytes to fall back on, the library drops a character without a word.
        self._drops_unknown = self._unknown_id is None and not _is_byte_level(inner)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of `text`; with `special`, whatever the tokenizer itself puts around a text (often a bos)."""
        if not isinstance(text, str):
            raise BadInput(f"the prompt is {text!r}; it must be text")
        if not text:
            raise BadInput("the prompt is empty; at least one character is needed")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as wrong:
            raise BadInput(f"the prompt holds {text[wrong.start]!r}, which is no character of Unicode text") from None
        for character in dict.fromkeys(text if self._missing_bytes else ""):
            if not self._missing_bytes.isdisjoint(_as_byte_characters(character)):
                raise BadInput(f"the tokenizer does not know {character!r}: it has no piece for one of its bytes")
        encoding = self.inner.encode(text, add_special_tokens=special)
        if self._unknown_id is not None and self._unknown_id in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(self._unknown_id)]
            raise BadInput(f"the tokenizer does not know {text[start:end]!r} (character {start + 1} of the prompt)")
        if self._drops_unknown:
            for place, character in enumerate(text):
                if not character.isspace() and not self.inner.encode(character, add_special_tokens=False).ids:
                    raise BadInput(f"the tokenizer does not know {character!r} (character {place + 1} of the prompt)")
        return encoding.ids

    def decode(self, token_ids: list[int]) -> str:
        """The text of the ids, special tokens left out; ids without a piece (a padded vocabulary) say nothing."""
        for token_id in token_ids:
            if not isinstance(token_id, int | np.integer) or not 0 <= token_id < 2**32:
                raise BadInput(f"token id {token_id!r} is not a whole number of at least 0")
        return self.inner.decode(list(token_ids), skip_special_tokens=True)

    def stream(self) -> "TextStream":
        """Begin turning tokens into text one at a time."""
        return TextStream(self)

    def apply_chat_template(self, message: str) -> str:
        """Put one user message into the model's own chat format (a Jinja template, run in a sandbox)."""
        if self.chat_template is None:
            raise BadInput("this model has no chat template; leave out --chat")
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise BadInput("chat templates need the package jinja2: pip install 'tinyinfer[chat]'") from None
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        messages = [{"role": "user", "content": message}]
        try:
            template = environment.from_string(self.chat_template)
            return template.render(messages=messages, add_generation_prompt=True, **self.template_tokens)
        except Exception as wrong:  # a template is a program: it can fail in any way
            raise BadInput(f"the model's chat template cannot be used: {wrong}") from None


class TextStream:
    """Token by token to text: bytes of an unfinished character wait until it is whole."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._said = ""

    def add(self, token_id: int) -> str:
        """The text that this token completes, possibly none."""
        self._ids.append(token_id)
        text = self._stream.step(self._tokenizer.inner, token_id) or ""
        self._said += text
        return text

    def finish(self) -> str:
        """What is still waiting when no token follows (an unfinished character shows as U+FFFD)."""
        return self._tokenizer.decode(self._ids)[len(self._said) :]


def _unknown_id(inner: tokenizers.Tokenizer) -> int | None:
    unknown = getattr(inner.model, "unk_token", None)
    return inner.token_to_id(unknown) if isinstance(unknown, str) else None


def _is_byte_level(inner: tokenizers.Tokenizer) -> bool:
    return "ByteLevel" in repr(inner.decoder)  # alone or within a sequence of decoders


def _missing_bytes(inner: tokenizers.Tokenizer) -> set[str]:
    """Bytes that a byte-level vocabulary lacks, in its own letters: the library drops them without a word."""
    if not _is_byte_level(inner):
        return set()
    return {letter for letter in pre_tokenizers.ByteLevel.alphabet() if inner.token_to_id(letter) is None}


def _as_byte_characters(text: str) -> str:
    """Each UTF-8 byte of `text` as the letter by which byte-level BPE calls it."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(letters for letters, _ in split.pre_tokenize_str(text))
