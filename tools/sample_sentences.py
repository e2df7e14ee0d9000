#!/usr/bin/env python3
"""Prints sentences of the repository's texts, drawn by a seed, for a reader to judge.

    tools/sample_sentences.py guides            # 40 sentences; the seed is printed
    tools/sample_sentences.py docs -n 60 --seed 7

A sentence passes if a storage engineer who does not know the project gets it at the first reading,
without the sentences around it. Code blocks and tables are left out.
"""

import argparse
import random
import re
import textwrap
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
CRATES = ["nowait", "nowait-log", "nowait-copy", "nowait-cache", "nowait-probe", "nowait-object-store"]
COMMAND = ["crates/nowait-cli/src/**/*.rs", "bench/src/command/*.rs", "bench/src/measure/options.rs"]
HELP = ["cli.rs", "args.rs", "options.rs"]
PUBLIC = re.compile(r"\s*pub (?!use\b|mod\b)")
MESSAGE = re.compile(r'\.with_(?:advice|detail)\(\s*(?:format!\(\s*)?"((?:[^"\\]|\\.)*)"')


def pages(*patterns):
    for pattern in patterns:
        for path in sorted(TOP.glob(pattern)):
            yield path, path.read_text()


def doc_comments():
    """Doc comments of public items, and of files."""
    for path, text in pages(*(f"crates/{crate}/src/**/*.rs" for crate in CRATES)):
        if "tests" in path.parts:
            continue
        block, head = [], []
        for line in text.splitlines():
            comment = re.match(r"\s*//([/!]) ?(.*)", line)
            if comment:
                (block if comment[1] == "/" else head).append(comment[2])
            elif not re.match(r"\s*#\[", line):
                if block and PUBLIC.match(line):
                    yield path, "\n".join(block)
                block = []
        if path.name == "lib.rs":
            yield path, "\n".join(head)


def errors():
    """Messages of errors, as they are in the source: one each."""
    for path, text in pages(*(f"crates/{crate}/src/**/*.rs" for crate in CRATES)):
        for found in MESSAGE.finditer(text):
            yield path, re.sub(r"\\\n\s*", "", found[1])


def cells():
    """Cells of the first column: a fact each."""
    for path, text in pages("docs/kernel.md"):
        yield path, text
        for row in re.findall(r"^\| *([^|]*?) *\|", text, flags=re.M):
            yield path, row


def decisions():
    for path, text in pages("docs/decisions.md"):
        yield path, re.sub(r"\*\*(Question|Decision|Reason|What would change it)\.\*\* ", "", text)


def header():
    for path, text in pages("crates/nowait-c/include/nowait.h"):
        for block in re.findall(r"(?:^ *//.*\n)+", text, flags=re.M):
            yield path, re.sub(r"^ *// ?", "", block, flags=re.M)


def docstrings():
    for path, text in pages("crates/nowait-python/python/nowait/*.py*"):
        for found in re.finditer(r'"""(.*?)"""', text, flags=re.S):
            yield path, textwrap.dedent("    " + found[1])
    for path, text in pages("crates/nowait-python/src/*.rs"):
        for block in re.findall(r"(?:^ *///.*\n)+", text, flags=re.M):
            yield path, re.sub(r"^ */// ?", "", block, flags=re.M)


def helps():
    """Help texts and messages of the command."""
    for path, text in pages(*COMMAND):
        for block in re.findall(r"(?:^ *///.*\n)+", text, flags=re.M) if path.name in HELP else []:
            yield path, re.sub(r"^ */// ?", "", block, flags=re.M)
        for found in re.finditer(r'(?:format|println|eprintln|write|writeln)!\([^"]{0,40}"((?:[^"\\]|\\.)*)"', text, flags=re.S):
            yield path, re.sub(r"\\\n\s*", "", found[1])


KINDS = {
    "guides": lambda: pages("docs/guide/*.md"),
    "readme": lambda: pages("README.md", "crates/*/README.md"),
    "architecture": lambda: pages("ARCHITECTURE.md", "*/ARCHITECTURE.md", "crates/*/ARCHITECTURE.md"),
    "changelog": lambda: pages("CHANGELOG.md"),
    "docs": doc_comments,
    "errors": errors,
    "decisions": decisions,
    "kernel": cells,
    "header": header,
    "python": docstrings,
    "help": helps,
    "measurements": lambda: pages("docs/measurements/*/README.md", "docs/measurements/*.md"),
}


def sentences(text):
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    text = re.sub(r"^ *(\||#).*$", "", text, flags=re.M)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d{1,2}\.) )", text):
        paragraph = re.sub(r"^(?:[*-]|\d{1,2}\.) ", "", " ".join(paragraph.split()))
        for sentence in re.split(r"(?<=[.!?])(?:\*\*)? +(?=[A-Z`*\[(\"])", paragraph):
            if len(sentence.split()) >= 4:
                yield sentence


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("-n", type=int, default=40, help="number of sentences [default: 40]")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="[default: drawn, and printed]")
    options = parser.parse_args()

    found = [(path, sentence) for path, text in KINDS[options.kind]() for sentence in sentences(text)]
    drawn = random.Random(options.seed).sample(found, min(options.n, len(found)))
    print(f"{options.kind}: {len(drawn)} of {len(found)} sentences, seed {options.seed}\n")
    for number, (path, sentence) in enumerate(drawn, 1):
        print(f"{number:3}. {sentence}\n     ({path.relative_to(TOP)})")


if __name__ == "__main__":
    main()
