"""Make the Chinese font of the figures and pages: the characters that the book uses, and those that `tang` can write.

    pip download --no-deps pylopdf-fonts-zh-cn && unzip pylopdf_fonts_zh_cn-*.whl
    python book/make_font.py pylopdf_fonts_zh_cn/NotoSansSC-Regular.otf

A font named Tiny Hanzi, cut from Noto Sans SC under the SIL Open Font License: `tinyinfer/figures/TinyHanzi.otf` for
matplotlib and `book/_static/TinyHanzi.woff2` for pages. Equal input gives equal bytes. Run it again when
`tests/book/test_font.py` names a character that is missing.
"""

import json
import sys
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

ROOT = Path(__file__).resolve().parents[1]
FAMILY = "Tiny Hanzi"
SOURCES = ("README.md", "book/*.md", "notebooks/*.ipynb", "tinyinfer/**/*.py", "tests/**/*.py")
POEMS = (
    "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。写诗秋天的诗"
    "春眠不觉晓处处闻啼鸟夜来风雨声花落知多少床前明月光疑是地上霜举头望低头思故乡"
)
TERMS = "大语言模型推理预填充解码注意力查询键值缓存词元分词器嵌入层归一化采样温度显存带宽算力吞吐延迟首字批处理"
SIGNS = "、。《》“”" + "".join(map(chr, range(0xFF01, 0xFF5F)))  # all full-width forms of ASCII


def is_chinese(character: str) -> bool:
    """Whether a Latin font would lack it: ideographs, their punctuation, full-width forms."""
    return any(low <= character <= high for low, high in ("\u3000\u303f", "\u3400\u9fff", "\uff00\uffef"))


def used_characters(root: Path = ROOT) -> set[str]:
    """Every Chinese character and full-width sign in the book, the notebooks, the package, the tests and the README."""
    used = set()
    for pattern in SOURCES:
        for path in root.glob(pattern):
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".ipynb":  # characters may be stored as \\u escapes
                text = json.dumps(json.loads(text), ensure_ascii=False)
            used |= set(filter(is_chinese, text))
    return used


def model_characters() -> set[str]:
    """The characters that the embedded model can write, so that any poem of its own can stand in a figure."""
    tokenizer = ROOT / "tinyinfer/models/tang/tokenizer.json"
    corpus = ROOT / "training/tang_corpus.json"
    if tokenizer.exists():
        return {token for token in json.loads(tokenizer.read_text("utf-8"))["model"]["vocab"] if len(token) == 1}
    return set(json.loads(corpus.read_text("utf-8"))["characters"])


def make(source: Path) -> None:
    options = subset.Options(layout_features=[], hinting=False, desubroutinize=True, name_languages=[0x409])
    options.name_IDs = [0, 1, 2, 3, 4, 5, 6, 13, 14]
    font = TTFont(source, recalcTimestamp=False)
    cutter = subset.Subsetter(options)
    wanted = used_characters() | set(filter(is_chinese, model_characters())) | set(POEMS + TERMS + SIGNS)
    if missing := wanted - set(map(chr, font.getBestCmap())):
        sys.exit(f"the source font lacks {''.join(sorted(missing))}")
    cutter.populate(text="".join(sorted(wanted)))
    cutter.subset(font)

    compact = FAMILY.replace(" ", "")
    names = {1: FAMILY, 3: f"1.0;{compact}", 4: FAMILY, 6: compact, 16: FAMILY}
    for record in font["name"].names:
        if record.nameID in names:
            record.string = names[record.nameID]
    cff = font["CFF "].cff
    cff.fontNames = [compact]
    cff.topDictIndex[0].FullName = cff.topDictIndex[0].FamilyName = FAMILY

    outputs = {None: ROOT / "tinyinfer/figures/TinyHanzi.otf", "woff2": ROOT / "book/_static/TinyHanzi.woff2"}
    for flavor, path in outputs.items():
        font.flavor = flavor
        font.save(path)
        print(f"{path.relative_to(ROOT)}: {len(wanted)} characters, {path.stat().st_size} bytes")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
