"""The catalogue: every part of the package, read from its source by ``ast``.

Nothing of the package is imported, so the catalogue cannot drift from the code and costs no import of torch.
"""

import ast
import gc
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["Entry", "Parameter", "entries", "render_markdown", "render_text", "to_json"]

KINDS = {
    "losses": "loss",
    "metrics": "metric",
    "modules": "module",
    "optim": "optimizer",
    "calibration.metrics": "metric",
    "calibration.calibrators": "calibrator",
    "calibration.conformal": "conformal",
    "quant": "quantizer",
    "callbacks": "callback",
}
"""Kind of the parts that a family exports; a family that is not named here is its own kind."""

NARROWEST = 20
"""Columns that a summary keeps in the text form."""

# A wheel holds recipes and configs inside the package, a checkout beside it: leaving them out keeps both alike.
NO_FAMILIES = {"cli", "configs", "recipes", "testing"}

SECTIONS = ("Args", "Returns", "Yields", "Raises", "Shape", "Example", "Note", "References")
_HEADER = re.compile(rf"({'|'.join(SECTIONS)})s?:\s*")
_ARGUMENT = re.compile(r"\*{0,2}(\w+)(?: \([^)]*\))?:\s*(.*)")
_REFERENCE = re.compile(r'(?P<authors>[^"]+?),? "(?P<title>[^"]+)"(?P<venue>.*)')
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_LINKS = (
    (re.compile(r"\barXiv:\s?(\d{4}\.\d{4,5}|[a-z-]+/\d{7})"), "https://arxiv.org/abs/{}"),
    (re.compile(r"\bdoi:\s?(10\.\S+[^\s.,])", re.IGNORECASE), "https://doi.org/{}"),
    (re.compile(r"\b(https?://\S+[^\s.,])"), "{}"),
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a constructor; annotation and default are source text, ``default`` None where required."""

    name: str
    annotation: str | None = None
    default: str | None = None
    keyword_only: bool = False
    description: str = ""


@dataclass(frozen=True)
class Entry:
    """One part.

    Args:
        name: Name of the class.
        path: Shortest path it is imported from.
        family: Folder of the defining module below the package, dotted.
        kind: What sort of part it is.
        functions: Public functions that its module exports beside it.
        summary: First line of the docstring.
        parameters: Parameters of the constructor.
        sections: Sections of the docstring in their order, by name.
        docstring: The whole docstring, dedented.
        file: File of the definition, from the folder that holds the package.
        line: Line of the definition.
    """

    name: str
    path: str
    family: str
    kind: str
    functions: tuple[str, ...]
    summary: str
    parameters: tuple[Parameter, ...]
    sections: dict[str, str] = field(hash=False)
    docstring: str
    file: str
    line: int

    @property
    def references(self) -> tuple[str, ...]:
        """The items of the section References, each as one line."""
        return tuple(_references(self.sections.get("References", "")))

    @property
    def paper(self) -> str:
        """Short form of the first reference, such as "Lin et al. 2017"; empty without one."""
        return _short_reference(self.references[0]) if self.references else ""

    @property
    def link(self) -> str:
        """Address of the first reference; empty without one."""
        text = self.references[0] if self.references else ""
        hits = ((pattern.search(text), address) for pattern, address in _LINKS)
        return next((address.format(hit[1]) for hit, address in hits if hit), "")


def entries(root: Path | None = None) -> list[Entry]:
    """Every part that a family of the package exports, sorted by family and name.

    A part is a public class with a base, as a module or a metric has; a class without one helps a part, as does what a
    private module exports: the base of a family and its exceptions.

    Args:
        root: Folder of the package; by default the one that this file lies in.
    """
    # Trees are large and without cycles: the collector would double the time that parsing takes.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _entries(_Package(root or Path(__file__).resolve().parent))
    finally:
        if collecting:
            gc.enable()


def _entries(package: "_Package") -> list[Entry]:
    found: dict[tuple[str, str], Entry] = {}
    # Short paths first, so that a class that two families export is listed under the shorter one.
    for family in sorted(package.families(), key=lambda name: (name.count("."), name)):
        for module in package.star_imports(family):
            private = module.rpartition(".")[2].startswith("_")
            for name in () if private else package.exports(module):
                entry = package.entry(family, module, name)
                if entry is not None:
                    found.setdefault((entry.file, entry.name), entry)
    return sorted(found.values(), key=lambda entry: (entry.family, entry.name))


def to_json(parts: Iterable[Entry]) -> str:
    """The entries as a JSON list."""
    return json.dumps([asdict(part) | {"paper": part.paper, "link": part.link} for part in parts], indent=2)


def render_text(parts: Sequence[Entry], width: int = 120, bold: bool = False) -> str:
    """The entries as aligned columns, grouped by family, with a count at the end.

    Args:
        parts: Entries, sorted by family.
        width: Columns to fit into; a summary that is too long ends in an ellipsis.
        bold: Whether headings carry the escape codes of a terminal.
    """
    names = max((len(part.name) for part in parts), default=0)
    papers = max((len(part.paper) for part in parts), default=0)
    # On a narrow terminal the summary matters more than the paper.
    papers = papers if width - names - papers - 6 >= NARROWEST else 0
    room = max(width - names - papers - 6, NARROWEST)
    summaries = min(room, max((len(_plain(part.summary)) for part in parts), default=0))
    lines: list[str] = []
    family = None
    for part in parts:
        if part.family != family:
            family = part.family
            lines += ["", f"\033[1m{family}\033[0m" if bold else family]
        summary = _shorten(_plain(part.summary), summaries)
        lines.append(f"  {part.name:{names}}  {summary:{summaries}}  {part.paper if papers else ''}".rstrip())
    lines += ["", f"{len(parts)} part{'' if len(parts) == 1 else 's'}"]
    return "\n".join(lines[1:] if parts else lines[-1:])


def render_markdown(parts: Iterable[Entry]) -> str:
    """The entries as a Markdown table."""
    rows = ["| Part | Import from | What it does | Paper |", "|---|---|---|---|"]
    for part in parts:
        paper = f"[{part.paper}]({part.link})" if part.paper and part.link else part.paper
        summary = part.summary.replace("``", "`").replace("|", r"\|")
        cells = (f"`{part.name}`", f"`{part.path.rpartition('.')[0]}`", _without_roles(summary), paper)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


class _Package:
    """The modules of one package, each parsed once and only when something asks for it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._trees: dict[str, ast.Module | None] = {}

    def families(self) -> Iterator[str]:
        """Packages whose ``__init__`` exports other modules by star imports."""
        for file in self.root.rglob("__init__.py"):
            parts = file.parent.relative_to(self.root).parts
            hidden = any(part.startswith("_") for part in parts)
            if parts and not hidden and parts[0] not in NO_FAMILIES and "import *" in file.read_text(encoding="utf-8"):
                yield ".".join((self.root.name, *parts))

    def file(self, module: str) -> Path | None:
        """File of a module of this package; None for a module of another one."""
        name, *parts = module.split(".")
        folder = self.root.joinpath(*parts)
        candidates = (folder.with_suffix(".py"), folder / "__init__.py") if name == self.root.name else ()
        return next((path for path in candidates if path.is_file()), None)

    def tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            file = self.file(module)
            self._trees[module] = None if file is None else ast.parse(file.read_text(encoding="utf-8"), str(file))
        return self._trees[module]

    def body(self, module: str) -> list[ast.stmt]:
        tree = self.tree(module)
        return [] if tree is None else tree.body

    def star_imports(self, module: str) -> Iterator[str]:
        for node in self.body(module):
            if isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*":
                yield node.module

    def exports(self, module: str) -> list[str]:
        """The names in ``__all__``."""
        for node in self.body(module):
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
                return [str(name) for name in ast.literal_eval(node.value)]
        return []

    def find_class(self, module: str, name: str) -> tuple[str, ast.ClassDef] | None:
        """Defining module and node of a class that ``module`` defines or imports from this package."""
        for node in self.body(module):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return module, node
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.find_class(node.module, alias.name)
        return None

    def parameters(self, module: str, node: ast.ClassDef) -> list[Parameter] | None:
        """Parameters of the constructor, an inherited one included; None where no class of this package defines it."""
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                return _signature(statement.args)[1:]
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            return _fields(node)
        for base in node.bases:
            found = self.find_class(module, ast.unparse(base).partition("[")[0])
            inherited = None if found is None else self.parameters(*found)
            if inherited is not None:
                return inherited
        return None

    def entry(self, family: str, module: str, name: str) -> Entry | None:
        found = self.find_class(module, name)
        if found is None:
            return None
        home, node = found
        if not node.bases:
            return None
        file = self.file(home)
        docstring = ast.get_docstring(node) or ""
        sections = _sections(docstring)
        described = documented_arguments(sections.get("Args", ""))
        parameters = self.parameters(home, node) or []
        exported = self.exports(module)
        functions = {n.name for n in self.body(module) if isinstance(n, ast.FunctionDef)}
        folder = module.split(".")[1:-1]
        return Entry(
            name=name,
            path=f"{family}.{name}",
            family=".".join(folder),
            kind=_kind(family.split(".")[1:]),
            functions=tuple(n for n in exported if n in functions),
            summary=docstring.partition("\n")[0].strip(),
            parameters=tuple(
                Parameter(p.name, p.annotation, p.default, p.keyword_only, described.get(p.name, ""))
                for p in parameters
            ),
            sections=sections,
            docstring=docstring,
            file="" if file is None else file.relative_to(self.root.parent).as_posix(),
            line=node.lineno,
        )


def documented_arguments(text: str) -> dict[str, str]:
    """Parameter names of a section Args with their descriptions."""
    matches = (_ARGUMENT.fullmatch(item) for item in _items(text))
    return {match[1]: match[2] for match in matches if match}


def _signature(arguments: ast.arguments) -> list[Parameter]:
    positional = arguments.posonlyargs + arguments.args
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    pairs = zip(positional + arguments.kwonlyargs, defaults + arguments.kw_defaults, strict=True)
    return [
        Parameter(a.arg, _source(a.annotation), _source(default), keyword_only=a in arguments.kwonlyargs)
        for a, default in pairs
    ]


def _fields(node: ast.ClassDef) -> list[Parameter]:
    return [
        Parameter(statement.target.id, _source(statement.annotation), _source(statement.value))
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and "ClassVar" not in ast.unparse(statement.annotation)
    ]


def _source(node: ast.expr | None) -> str | None:
    # Names and constants need no unparser, which is slow and most often not needed.
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant):
        return repr(node.value)
    return None if node is None else ast.unparse(node)


def _kind(family: Sequence[str]) -> str:
    for length in range(len(family), 0, -1):
        kind = KINDS.get(".".join(family[:length]))
        if kind:
            return kind
    return family[-1]


def _sections(docstring: str) -> dict[str, str]:
    collected: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in docstring.splitlines():
        header = _HEADER.fullmatch(line)
        if header:
            current = collected.setdefault(header[1], [])
        elif line and not line[0].isspace():
            current = None
        elif current is not None:
            current.append(line)
    return {name: inspect.cleandoc("\n" + "\n".join(lines)) for name, lines in collected.items()}


def _items(text: str) -> list[str]:
    """Items of a list in which continuation lines are indented, each joined to one line."""
    items: list[str] = []
    for line in text.splitlines():
        if line[:1].isspace() and items:
            items[-1] += " " + line.strip()
        elif line.strip():
            items.append(line.strip().removeprefix("- "))
    return items


def _references(text: str) -> list[str]:
    """Whole references; one goes on until it holds a title and a year, and an address after it still belongs to it."""
    references: list[str] = []
    complete = True
    for line in filter(None, (line.strip() for line in text.splitlines())):
        if complete and not any(pattern.match(line) for pattern, _ in _LINKS):
            references.append(line.removeprefix("- "))
        elif references:
            references[-1] += " " + line
        match = _REFERENCE.match(references[-1]) if references else None
        complete = match is not None and _YEAR.search(match["venue"]) is not None
    return references


def _short_reference(reference: str) -> str:
    match = _REFERENCE.match(reference)
    if match is None:
        return ""
    listed = re.sub(r",? et al\.?", "", match["authors"])
    names = [_surname(name) for name in re.split(r",? and |, ", listed)]
    year = _YEAR.search(match["venue"])
    several = len(names) > 2 or listed != match["authors"]
    authors = f"{names[0]} et al." if several else " and ".join(names)
    return f"{authors} {year[0]}" if year else authors


def _surname(name: str) -> str:
    """Last word of a name with the particles before it, as in "van den Oord"."""
    words = name.split()
    start = len(words) - 1
    while start > 0 and words[start - 1].islower():
        start -= 1
    return " ".join(words[start:])


def _without_roles(text: str) -> str:
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)


def _plain(text: str) -> str:
    return _without_roles(text).replace("`", "")


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"
