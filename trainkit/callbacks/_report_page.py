"""The page of a report: one HTML file without references to anything outside."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import trainkit
from trainkit._core.svg import escaped
from trainkit.callbacks._history import Series

__all__ = ["Picture", "Report", "number", "page"]

STYLE = """
:root{color-scheme:light dark;--text:#1f2328;--soft:#59636e;--line:#d6dbe1;--back:#fff;--panel:#f6f8fa;
--good:#1a7f37;--bad:#cf222e;--busy:#9a6700}
@media(prefers-color-scheme:dark){:root{--text:#e6e6e6;--soft:#9aa4af;--line:#343b43;--back:#14171b;--panel:#1c2026;
--good:#4cc25f;--bad:#ff7b72;--busy:#d9a13a}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:68rem;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .5rem;font-weight:650;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2.5rem 0 .75rem;font-weight:650;padding-bottom:.35rem;border-bottom:1px solid var(--line)}
p{margin:.25rem 0}.soft,small,figcaption{color:var(--soft)}small{font-size:.8rem}
.state{font-weight:600}.finished{color:var(--good)}.stopped{color:var(--bad)}.running{color:var(--busy)}
.wide{overflow-x:auto}.wide:focus-visible,pre:focus-visible{outline:2px solid currentColor;outline-offset:2px}
table{border-collapse:collapse;min-width:100%}
th,td{text-align:left;vertical-align:top;padding:.4rem 1rem .4rem 0;border-bottom:1px solid var(--line)}
thead th{font-size:.8rem;font-weight:600;color:var(--soft);white-space:nowrap}
tbody th{font-weight:500;overflow-wrap:anywhere;min-width:7rem}
.n{text-align:right}td.n{white-space:nowrap}td small,th small{display:block;line-height:1.3;font-weight:400}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
th:last-child,td:last-child{padding-right:0}.best{color:var(--good);font-weight:600}
.pair th{width:11rem;font-weight:400;color:var(--soft);white-space:nowrap}.pair td{overflow-wrap:anywhere}
.grid{display:grid;gap:1.25rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,24rem),1fr));align-items:start}
figure{margin:0;padding:.75rem;border:1px solid var(--line);border-radius:.5rem;break-inside:avoid;min-width:0}
figure svg{display:block;width:100%;height:auto}
figcaption{font-size:.8rem;line-height:1.4;margin-top:.35rem;overflow-wrap:anywhere}
pre{margin:0;padding:1rem;max-height:32rem;overflow:auto;background:var(--panel);border-radius:.5rem;
font:12.5px/1.5 ui-monospace,monospace}
.error pre{margin-top:.75rem;border-left:3px solid var(--bad);white-space:pre-wrap;overflow-wrap:anywhere}
li{overflow-wrap:anywhere}footer{margin-top:3rem;font-size:.8rem;color:var(--soft)}
@media(max-width:40rem){body{padding:1.25rem .9rem 3rem}th,td{padding-right:.75rem}
td small{white-space:normal}.pair th{width:auto;white-space:normal}}
@media print{:root{--text:#000;--soft:#444;--line:#bbb;--back:#fff;--panel:#fff}
body{max-width:none;padding:0;font-size:11px}
pre{max-height:none;white-space:pre-wrap;overflow-wrap:anywhere}.tk{color:#000!important}h2{break-after:avoid}
.grid{grid-template-columns:1fr 1fr}}
"""


@dataclass(frozen=True)
class Picture:
    """A figure of the page.

    Args:
        svg: The figure, as :func:`trainkit._core.svg.to_svg` draws it.
        caption: What stands below it.
    """

    svg: str
    caption: str


@dataclass(frozen=True)
class Report:
    """What a page tells.

    Args:
        title: Module and data.
        state: running, finished or stopped.
        error: Text of the exception that stopped the run.
        times: Start, duration, progress: one line each.
        metrics: Series of the table.
        directions: ``min`` or ``max`` by name of a metric, where that is known.
        curves: Figures of what changed over the steps.
        figures: Figures that were published.
        tables: Caption, names of the columns and rows.
        config_name: Where the configuration stands.
        config: Its text.
        warnings: Sentences.
    """

    title: str
    state: str
    error: str
    times: Sequence[str]
    metrics: Sequence[Series]
    directions: dict[str, str] = field(default_factory=dict)
    curves: Sequence[Picture] = ()
    figures: Sequence[Picture] = ()
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = ()
    config_name: str = ""
    config: str = ""
    warnings: Sequence[str] = ()


def number(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def _place(series: Series, index: int) -> str:
    """A value and where it stands."""
    step, epoch = series.steps[index], series.epochs[index]
    return f"{number(series.values[index])}<small>step {step:,}, epoch {epoch}</small>"


def _metric(series: Series, direction: str | None) -> str:
    extremes = series.extremes() if len(series.values) > 1 else None
    cells = [_place(series, len(series.values) - 1)]
    for mode, index in zip(("min", "max"), extremes or (), strict=False):
        best = mode == direction
        cells.append(f'<span class="best">{_place(series, index)}</span>' if best else _place(series, index))
    cells += [""] * (3 - len(cells))
    row = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    return f'<tr><th scope="row">{escaped(series.name)}<small>{escaped(series.stage)}</small></th>{row}</tr>'


def _wide(label: str, table: str) -> str:
    """A table that can be scrolled, with keys too."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escaped(label)}">{table}</div>'


def _metrics(report: Report) -> str:
    if not report.metrics:
        return '<p class="soft">Nothing was logged.</p>'
    head = '<th scope="col">Metric</th>' + "".join(
        f'<th scope="col" class="n">{name}</th>' for name in ("Last", "Lowest", "Highest")
    )
    rows = []
    for series in report.metrics:
        guessed = "min" if "loss" in series.name.lower() else None
        rows.append(_metric(series, report.directions.get(series.name, guessed)))
    told = "Values as logged; the better end is green where a callback monitors the metric or it is a loss."
    body = f'<caption class="hidden">Metrics</caption><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
    return f'<p class="soft">{told}</p>' + _wide("Metrics", f"<table>{body}</table>")


def _table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows whose first cell names them; without names of columns they are pairs."""
    kind = "" if columns else ' class="pair"'
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in columns)
    cells = (
        "".join([f'<th scope="row">{escaped(row[0])}</th>', *(f"<td>{escaped(cell)}</td>" for cell in row[1:])])
        for row in rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    top = f"<thead><tr>{head}</tr></thead>" if columns else ""
    hidden = f'<caption class="hidden">{escaped(caption)}</caption>'
    return _wide(caption, f"<table{kind}>{hidden}{top}<tbody>{body}</tbody></table>")


def _pictures(pictures: Sequence[Picture]) -> str:
    figures = (f"<figure>{p.svg}<figcaption>{escaped(p.caption)}</figcaption></figure>" for p in pictures)
    return f'<div class="grid">{"".join(figures)}</div>'


def _code(label: str, text: str) -> str:
    return f'<pre tabindex="0" role="region" aria-label="{escaped(label)}"><code>{escaped(text)}</code></pre>'


def _header(report: Report) -> str:
    times = "".join(f"<p>{escaped(line)}</p>" for line in report.times)
    state = f'<p class="state {report.state}">{report.state.capitalize()}</p>'
    error = f'<div class="error">{_code("Error", report.error)}</div>' if report.error else ""
    return f'<header><h1>{escaped(report.title)}</h1>{state}<div class="soft">{times}</div>{error}</header>'


def page(report: Report) -> str:
    """The page of a report."""
    warnings = "".join(f"<li>{escaped(text)}</li>" for text in report.warnings)
    sections = [
        ("Metrics", _metrics(report)),
        ("Warnings", f"<ul>{warnings}</ul>" if warnings else ""),
        ("Curves", _pictures(report.curves) if report.curves else ""),
        ("Figures", _pictures(report.figures) if report.figures else ""),
        *((caption, _table(caption, columns, rows) if rows else "") for caption, columns, rows in report.tables),
        ("Configuration", _config(report) if report.config else ""),
    ]
    body = "".join(
        f'<section aria-labelledby="s{i}"><h2 id="s{i}">{escaped(title)}</h2>{content}</section>'
        for i, (title, content) in enumerate(sections)
        if content
    )
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escaped(report.title)}: {report.state}</title><style>{STYLE}</style>"
    )
    foot = f"<footer>Written by trainkit {trainkit.__version__}.</footer>"
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>'
        f"<body>{_header(report)}<main>{body}</main>{foot}</body></html>\n"
    )


def _config(report: Report) -> str:
    return f'<p class="soft">{escaped(report.config_name)}</p>{_code("Configuration", report.config)}'
