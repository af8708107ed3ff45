"""Docstrings have the sections that users, the catalogue and the command line read, and document what exists."""

import importlib
import inspect
import re
import sys

import pytest

from trainkit import catalogue
from trainkit.catalogue import SECTIONS, documented_arguments

PARTS = catalogue.entries()
WITH_FORMULA = {"loss", "metric", "calibrator"}
WITH_SHAPE = {"loss", "metric", "module", "calibrator"}
WITH_REFERENCES = {"loss", "metric", "calibrator"}


def required_sections(part):
    from_paper = "no paper" not in " ".join(part.sections.get("Note", "").split()).lower()
    wanted = {"Example", "Note"}
    wanted |= {"Args"} if part.parameters else set()
    wanted |= {"Shape"} if part.kind in WITH_SHAPE else set()
    wanted |= {"References"} if part.kind in WITH_REFERENCES and from_paper else set()
    return wanted


def problems(part):
    """What is wrong with the docstring of a class, in words."""
    if not part.summary.endswith("."):
        yield "the first line is no sentence that ends with a full stop"
    headers = re.findall(rf"^({'|'.join(SECTIONS)})s?:$", part.docstring, re.MULTILINE)
    if headers != sorted(set(headers), key=SECTIONS.index):
        yield f"sections stand in the order {', '.join(headers)}, want {', '.join(SECTIONS)}"
    missing = required_sections(part) - set(part.sections)
    if missing:
        yield f"sections are missing: {', '.join(sorted(missing))}"
    if part.kind in WITH_FORMULA and ".. math::" not in part.docstring:
        yield "there is no formula"
    documented = list(documented_arguments(part.sections.get("Args", "")))
    if documented != [p.name for p in part.parameters]:
        yield f"Args documents {documented}, the constructor takes {[p.name for p in part.parameters]}"
    if any(not p.description.rstrip().endswith((".", "`", ")")) for p in part.parameters if p.description):
        yield "a description of an argument is no sentence"
    if "Example" in part.sections and ">>>" not in part.sections["Example"]:
        yield "the example does not run"
    for reference in part.references:
        if not re.fullmatch(r'[^"]+, "[^"]+", .*\b(19|20)\d\d\b.*', reference):
            yield f'the reference is not of the form Author, "Title", Venue 2024. arXiv:...: {reference}'


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_class_docstring(part):
    assert list(problems(part)) == []


FUNCTIONS = [
    (package, name)
    for package in sorted({part.path.rpartition(".")[0] for part in PARTS})
    for name, value in vars(importlib.import_module(package)).items()
    if inspect.isfunction(value) and not name.startswith("_")
]


@pytest.mark.parametrize(("package", "name"), FUNCTIONS, ids=lambda value: value)
def test_function_docstring(package, name):
    """A function names the class that documents it, or documents its own arguments."""
    module = importlib.import_module(package)
    function = getattr(module, name)
    docstring = inspect.getdoc(function) or ""
    assert docstring.partition("\n")[0].endswith("."), "the first line is no sentence that ends with a full stop"
    form = re.match(r"Functional form of :class:`(\w+)`", docstring)
    if form:
        assert form[1] in sys.modules[function.__module__].__all__
        return
    text = re.search(r"^Args:\n((?: .*\n?|\n)+)", docstring + "\n", re.MULTILINE)
    if text:
        arguments = documented_arguments(inspect.cleandoc("\n" + text[1]))
        assert list(arguments) == list(inspect.signature(function).parameters)


def broken(**changes):
    """An entry with one fault; the base is right in every respect."""
    part = next(part for part in PARTS if part.kind == "loss" and part.parameters)
    return catalogue.Entry(**{**{name: getattr(part, name) for name in part.__dataclass_fields__}, **changes})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda part: {"summary": "No stop"}, "full stop"),
        (lambda part: {"docstring": part.docstring.replace(".. math::", "")}, "no formula"),
        (lambda part: {"parameters": part.parameters[1:]}, "Args documents"),
        (lambda part: {"sections": {k: v for k, v in part.sections.items() if k != "Shape"}}, "missing: Shape"),
        (lambda part: {"sections": part.sections | {"Example": "text"}}, "does not run"),
        (lambda part: {"docstring": part.docstring + "\nArgs:\n"}, "order"),
        (lambda part: {"sections": part.sections | {"References": "Someone, a title, 2017"}}, "not of the form"),
    ],
    ids=["summary", "formula", "args", "shape", "example", "order", "reference"],
)
def test_a_fault_is_found(change, words):
    assert list(problems(broken())) == []
    (problem,) = problems(broken(**change(broken())))
    assert words in problem
