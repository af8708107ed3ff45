"""Texts as bags of hashed words, pairs of words and letters."""

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from .bags import Array, Bags, Block

__all__ = ["hashed_ngrams"]

Hashes: TypeAlias = NDArray[np.uint64]

WORD = re.compile(r"[^\W_]+")
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
LETTERS = (3, 4)
TEXTS = 2048
"""Texts that are hashed at once."""
LAST_POSITION = 255
BASE = np.uint64(0x9E3779B97F4A7C15)
INVERSE = np.uint64(pow(int(BASE), -1, 2**64))
SPACE = ord(" ")


def _words(text: str) -> str:
    return " ".join(WORD.findall(HUMP.sub(" ", text))).lower()


def _hashed(texts: Sequence[str]) -> Block:
    spelled = [f" {_words(text)} ".encode() for text in texts]
    letters = np.frombuffer(b"".join(spelled), np.uint8)
    text = np.repeat(np.arange(len(spelled)), [len(s) for s in spelled])
    # A space ends a word if the next letter is no space; two spaces meet where one text ends and the next begins.
    spaces = letters == SPACE
    starts = np.flatnonzero(spaces[:-1] & ~spaces[1:]) + 1
    ends = np.flatnonzero(~spaces[:-1] & spaces[1:]) + 1
    first_word = np.searchsorted(starts, np.searchsorted(text, np.arange(len(spelled))))
    position = np.arange(len(starts)) - first_word[text[starts]]
    word_at = np.cumsum(np.bincount(starts, minlength=len(letters))) - 1
    powers = np.cumprod(np.full(len(letters) + 1, BASE), dtype=np.uint64)
    inverses = np.cumprod(np.full(len(letters) + 1, INVERSE), dtype=np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum((letters + np.uint64(1)) * powers[:-1], dtype=np.uint64)])

    def tokens_of(begin: Array, end: Array, salt: int) -> Hashes:
        hashes: Hashes = (sums[end] - sums[begin]) * inverses[begin] + np.uint64(salt)
        return hashes

    words = tokens_of(starts, ends, 1)
    found = [(words, text[starts], position)]
    same = np.flatnonzero(text[starts[:-1]] == text[starts[1:]]) if len(starts) else np.zeros(0, np.int64)
    found.append((words[same] * BASE + words[same + 1], text[starts[same]], position[same]))
    spaces_before = np.concatenate([[0], spaces.cumsum()])
    for length in LETTERS:
        begin = np.arange(max(0, len(letters) - length + 1))
        inner = spaces_before[begin + length - 1] - spaces_before[begin + 1]
        # Windows lie in one word and the spaces around it.
        begin = begin[(inner == 0) & (text[begin] == text[begin + length - 1])]
        middle = begin + spaces[begin]
        found.append((tokens_of(begin, begin + length, length), text[begin], position[word_at[middle]]))
    hashes, text_of, place = (np.concatenate(column) for column in zip(*found, strict=True))
    return _counted(hashes, text_of, place, len(texts))


def _counted(hashes: Hashes, text: Array, position: Array, texts: int) -> Block:
    """Each token of a text once, with its number and its first position."""
    mixed = (hashes ^ (hashes >> np.uint64(29))) * BASE
    key = (text.astype(np.uint64) << np.uint64(31)) | (mixed >> np.uint64(33))
    order = np.argsort(position, kind="stable")
    unique, first, counts = np.unique(key[order], return_index=True, return_counts=True)
    lengths = np.bincount((unique >> np.uint64(31)).astype(np.int64), minlength=texts)
    positions = position[order][first].clip(max=LAST_POSITION)
    return (unique & np.uint64(2**31 - 1)).astype(np.int64), counts, positions, lengths


def _blocks(texts: Sequence[str], title: str) -> Iterator[Block]:
    with tqdm(total=len(texts), desc=title, unit="text", leave=False, disable=len(texts) <= TEXTS) as bar:
        for start in range(0, len(texts), TEXTS):
            block = texts[start : start + TEXTS]
            yield _hashed(block)
            bar.update(len(block))


def hashed_ngrams(texts: Sequence[str], title: str = "hashing") -> Bags:
    """Bags of the words of each text, of the pairs of neighbours among them, and of 3 and 4 letters in a row.

    Words are runs of letters and digits, in lower case; names in camelCase and snake_case fall into theirs. Letters in
    a row stay within a word and the spaces around it.

    Args:
        texts: Any texts; one without a word has an empty bag.
        title: Of the progress bar, which is shown for many texts.
    """
    return Bags(list(_blocks(texts, title)))
