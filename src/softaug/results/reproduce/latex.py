"""A table as LaTeX in the paper's form: booktabs, the deviation below the mean, groups of columns side by side."""

from __future__ import annotations

from collections.abc import Iterator

from softaug.results.published import PublishedResult
from softaug.results.reproduce.formats import aggregate_note, aggregate_table, number
from softaug.results.reproduce.grids import Panel, TableRow
from softaug.results.reproduce.tables import TableResult

ESCAPES = {"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$"}
ESCAPES |= {"{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
WIDE = 7
"""columns that still fit the page at full size"""
SYMBOLS = {"±": r"$\pm$", "–": "--"}


def escape(text: str) -> str:
    """Plain text for LaTeX."""
    return "".join(ESCAPES.get(letter) or SYMBOLS.get(letter, letter) for letter in text)


def latex(table: TableResult) -> str:
    """A whole table environment; needs the packages booktabs and graphicx."""
    notes = escape(". ".join(note[0].upper() + note[1:] for note in table.notes))
    theirs = "the paper's numbers" if table.item.references == "paper" else "published numbers"
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{\textbf{{{escape(table.item.title)}.}} Average return; {theirs} in parentheses. {notes}.}}",
        rf"\label{{tab:{table.item.name}}}",
    ]
    for panel in table.item.panels:
        wide = len(panel.columns) > WIDE
        lines += (
            [r"\resizebox{\textwidth}{!}{%", *_tabular(table, panel), "}"] if wide else _tabular(table, panel)
        )
        lines.append("")
    if table.aggregates:
        lines += [*_aggregates(table), ""]
        lines.append(rf"\par\medskip {{\footnotesize {escape(aggregate_note(table))}}}")
    lines.append(r"\end{table*}")
    return "\n".join(lines) + "\n"


def _aggregates(table: TableResult) -> Iterator[str]:
    head, lines = aggregate_table(table)
    yield r"\par\bigskip"
    yield rf"\begin{{tabular}}{{{'l' * 2 + 'c' * (len(head) - 2)}}}"
    yield r"\toprule"
    yield " & ".join(map(escape, head)) + r" \\"
    yield r"\midrule"
    for line in lines:
        yield " & ".join(map(escape, line)) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _tabular(table: TableResult, panel: Panel) -> Iterator[str]:
    yield rf"\begin{{tabular}}{{l{'c' * len(panel.columns)}}}"
    yield r"\toprule"
    if any(panel.groups):
        spans, rules, start = [], [], 2
        for group in panel.groups:
            width = sum(column.group == group for column in panel.columns)
            spans.append(rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{escape(group)}}}}}")
            rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
            start += width
        yield " & ".join(["", *spans]) + r" \\"
        yield " ".join(rules)
    # As in the paper, the augmentation stands below the method: "SODA" over "(overlay)".
    words = [column.label.split(" ", 1) for column in panel.columns]
    yield " & ".join(["", *(escape(word[0]) for word in words)]) + r" \\"
    if any(len(word) > 1 for word in words):
        yield " & ".join(["", *(escape(word[1]) if len(word) > 1 else "" for word in words)]) + r" \\"
    yield r"\midrule"
    digits = table.item.digits
    for index, row in enumerate(panel.rows):
        best = {(group, m) for group in panel.groups for m in table.best(panel, row, group)}
        means, spreads = [], []
        for column in panel.columns:
            key = table.at(row, column)
            cell = table.cells[key]
            form = r"$\mathbf{%s}$" if (column.group, column.method) in best else "$%s$"
            means.append("--" if cell is None else form % number(cell.mean, digits))
            spread = None if cell is None else cell.std
            spreads.append("" if spread is None else form % rf"{{\scriptstyle\pm {number(spread, digits)}}}")
        yield " & ".join([rf"\texttt{{{escape(row.label)}}}", *means]) + r" \\"
        if any(spreads):
            yield " & ".join(["", *spreads]) + r" \\"
        for label, numbers in _references(table, panel, row).items():
            found = [_published(numbers.get((c.group, c.method)), digits) for c in panel.columns]
            yield " & ".join([rf"{{\scriptsize ({escape(label)})}}", *found]) + r" \\"
        yield r"\bottomrule" if index == len(panel.rows) - 1 else r"\addlinespace"
    yield r"\end{tabular}"


def _references(
    table: TableResult, panel: Panel, row: TableRow
) -> dict[str, dict[tuple[str, str], PublishedResult]]:
    """Who reports numbers for a row -> (group, method) -> number: a line goes over all groups of columns."""
    lines: dict[str, dict[tuple[str, str], PublishedResult]] = {}
    for group in panel.groups:
        for reference in table.references(panel, row, group):
            numbers = {(group, method): found for method, found in reference.numbers.items()}
            lines.setdefault(reference.label, {}).update(numbers)
    return lines


def _published(found: PublishedResult | None, digits: int) -> str:
    if found is None:
        return ""
    spread = "" if found.std is None else rf"$\pm${number(found.std, digits)}"
    return rf"{{\scriptsize ({number(found.mean, digits)}{spread})}}"
