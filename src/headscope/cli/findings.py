"""What a study found, as people read it: tables and lines from the findings that `--json` prints as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from headscope.cli.console import note, number, out, plain, print_end, print_json

if TYPE_CHECKING:
    from headscope.records import Check
    from headscope.report.outputs import Outputs
    from headscope.runs.settings import Printed

Findings = dict[str, Any]


def show(outputs: Outputs, settings: Printed) -> None:
    """Print what a run found: one JSON document, or tables, what is to be said of them, and where everything is."""
    findings = {**outputs.findings(top=getattr(settings, "top", 10)), "found": outputs.sentences()}
    if settings.as_json:
        print_json(findings)
        return
    SHOWN[outputs.run.manifest["command"]](findings)
    for name, facts in outputs.run.manifest["models"].items():
        if facts.get("note"):
            note(f"{name}: {facts['note']}.")
    warn_unusable(findings.get("checks", ()))
    print_end(" ".join(findings["found"][:1]), findings["figures"], findings["run"])


def show_checks(checks: list[Check], model_note: str, settings: Printed) -> None:
    """How well a model does tasks."""
    rows = [{**asdict(check), "usable": check.usable} for check in checks]
    if settings.as_json:
        print_json(rows[0] if len(rows) == 1 else rows)
        return
    table = Table(
        "Task", "Prompts", "Accuracy", "Metric", "Clean", "Corrupt", title=f"{checks[0].model}: how well it does"
    )
    for c in checks:
        row = (c.task, str(c.n), f"{c.accuracy:.3f}", c.metric_name, f"{c.metric:.3f}", number(c.corrupt_metric, ".3f"))
        table.add_row(*row, style=None if c.usable else "yellow")
    out.print(table)
    if model_note:
        note(f"{checks[0].model}: {model_note}.")
    warn_unusable(rows)


def show_answers(model: str, rows: list[Findings], settings: Printed) -> None:
    """How well a model answers the questions of each function."""
    if settings.as_json:
        print_json([{"model": model, **row} for row in rows])
        return
    table = Table("Function", "Questions", "Accuracy", "ROUGE-1", "chrF", title=f"{model}: how well it answers")
    for row in rows:
        table.add_row(row["task"], str(row["n"]), *(f"{row[name]:.3f}" for name in ("accuracy", "rouge", "chrf")))
    out.print(table)
    warn_answers(model, [{**row, "function": row["task"], "match": row["accuracy"]} for row in rows])


def warn_unusable(checks: Iterable[Findings]) -> None:
    for c in checks:
        if not c["usable"]:
            note(
                f"{c['model']} does not do {c['task']}: accuracy {c['accuracy']:.2f}, metric {c['metric']:.3f} clean "
                f"and {number(c['corrupt_metric'], '.3f')} corrupt. Scores of its heads explain nothing. "
                f"{c.get('note', '')}".strip()
            )


# Of the questions of a function, the share of right answers below which the model does not do it.
HARDLY = 0.1


def warn_answers(model: str, rows: Iterable[Findings]) -> None:
    for row in rows:
        if row["match"] < HARDLY:
            note(
                f"{model} does not do {row['function']}: {row['match'] * row['n']:.0f} of {row['n']} answers are "
                "right. What masking changes in the others explains nothing."
            )
        if row.get("cut"):
            note(
                f"{row['function']}: {row['cut']} of {row['n']} answers were cut at the token limit before they ended; "
                "give a larger --max-new-tokens."
            )


def _line(text: str) -> None:
    out.print(plain(text), soft_wrap=True, highlight=False)


def _interval(found: Findings, form: str) -> str:
    """The ends of an interval, or why there is none."""
    return f"({note})" if (note := found.get("note")) else f"[{found['low']:{form}}, {found['high']:{form}}]"


def _heads(findings: Findings) -> None:
    _series(findings, "head", "ranking")


def _edges(findings: Findings) -> None:
    _series(findings, "edge", "choice")
    for c in findings["circuits"]:
        _line(
            f"Circuit of {c['model']} on {c['task']}, {c['method']}, {c['choice']}: {c['chosen']:,} edges, "
            f"{c['connected']:,} of them connected{' and kept' if c['kept'] < c['chosen'] else ''}; run by itself, it "
            f"explains {number(c['explained'], '.3f')} {_interval(c, '.3f')}"
        )


def _series(findings: Findings, what: str, order: str) -> None:
    from headscope.records import Multiplier, Needed

    for scores in findings["scores"]:
        if not scores["method"].startswith("random"):
            out.print(_top(scores, what))
    curves = findings["curves"]
    # As in MIB: CPR is for a ranking by signed score, CMD for one by absolute score.
    measure = "cpr" if curves[0]["signed"] else "cmd"
    caption = {
        "cpr": "CPR: area under the curve at MIB's sizes, ranked by signed score",
        "cmd": "CMD: area between the curve and 1 at MIB's sizes, ranked by absolute score (--signed gives CPR)",
    }
    needs = f"{what.capitalize()}s for {curves[0]['threshold']:g}"
    columns = ("Model", "Task", "Method", order.capitalize(), needs, "of", "Area", measure.upper())
    table = Table(*columns, title=f"Explained effect against {what}s kept", caption=caption[measure])
    for c in curves:
        need = Needed(c["k_at_threshold"], c["k_low"], c["k_high"], c["note"])
        row = (c["model"], c["task"], c["method"], c[order], str(need), str(c["total"]), number(c["area"], ".3f"))
        table.add_row(*row, number(c[measure], ".3f"))
    out.print(table)
    for c in findings["multipliers"]:
        ratio = Multiplier(**{name: c[name] for name in Multiplier.__dataclass_fields__})
        _line(f"{c['task']}: {c['first']} against {c['against']}: {ratio}")
    for c in findings["against_random"]:
        ratio = Multiplier(**{name: c[name] for name in Multiplier.__dataclass_fields__})
        _line(f"{c['task']}: {c['against']} against a ranking at random: {ratio}")


def _top(scores: Findings, what: str) -> Table:
    title = f"{scores['model']} on {scores['task']}: the {what}s that matter most"
    caption = f"{scores['method']}, {scores['n']} prompts"
    table = Table("Rank", what.capitalize(), "Score", "", title=title, caption=caption)
    largest = max(abs(row["score"]) for row in scores["top"]) or 1.0
    for rank, row in enumerate(scores["top"], 1):
        score = row["score"]
        colour, length = ("dark_orange", "medium_purple")[score < 0], round(24 * abs(score) / largest)
        table.add_row(str(rank), row[what], f"{score:+.3f}", f"[{colour}]{'█' * length}")
    return table


def _roles(findings: Findings, most: int = 7) -> None:
    """most: of a curve, columns of the largest k, as many as fit beside each other; the CSV has all."""
    for roles in findings["roles"]:
        # (One seed has no others to agree with.)
        columns = {"Heads": "share"}
        if len(roles["seeds"]) > 1:
            columns |= {"In all seeds": "always", "In some": "sometimes", "In none": "never"}
        table = Table("Role", *columns, title=f"{roles['model']} on {roles['task']}")
        for role, share in roles["spread"].items():
            table.add_row(role, *(f"{share[key]:.1%}" for key in columns.values()))
        out.print(table)
    for curve in findings["curves"]:
        title = f"{curve['model']} on {curve['task']}: change of log P(target) when k heads are ablated"
        table = Table("Score, by k", *(str(k) for k in curve["k"][-most:]), title=title)
        for role, line in curve.items():
            if isinstance(line, dict):
                table.add_row(role, *(f"{value:+.2f}" for value in line["mean"][-most:]))
        out.print(table)
    for one in findings["patching"]:
        _line(
            f"{one['model']} on {one['task']}: facilitation against patching: rank correlation "
            f"{number(one['rank correlation'], '.2f')}, {one['shared']} of the best {one['k']} heads shared "
            f"({one['by chance']:.1f} by chance)"
        )
    for c in findings["contrasts"]:
        _line(
            f"{c['model']}, gates that keep {c['keep']} and forget {c['forget']}: accuracy {c['kept']:.2f} (plain "
            f"{c['plain kept']:.2f}) and {c['forgotten']:.2f} (plain {c['plain forgotten']:.2f})"
        )


def _functions(findings: Findings) -> None:
    table = Table("Function", "Questions", "Right", title="Answers with every head in place")
    for row in findings["base"]:
        table.add_row(row["function"], str(row["n"]), f"{row['match']:.2f}")
    out.print(table)
    from headscope.report.figures.functions import second_score

    second = second_score(findings["sweep"])
    columns = ["Ranking", "Function", "K", "TopK", "RandomK", "lowest to highest", "Below"]
    columns += [f"TopK {second}", f"RandomK {second}"] if second else []
    table = Table(*columns, title="Accuracy with K heads masked")
    for row in findings["sweep"]:
        band = f"{row['random_accuracy_low']:.2f} to {row['random_accuracy_high']:.2f}"
        cells = [f"{row['top_accuracy']:.2f}", f"{row['random_accuracy']:.2f}", band, "yes" if row["below"] else ""]
        cells += [number(row[f"{which}_{second}"], ".2f") for which in ("top", "random")] if second else []
        table.add_row(row["ranking"], row["function"], str(row["k"]), *cells)
    out.print(table)
    for ranking in dict.fromkeys(row["ranking"] for row in findings["cross"]):
        out.print(_cross([row for row in findings["cross"] if row["ranking"] == ranking]))
    if findings["steered"]:
        table = Table("Function", "Heads", "Alpha", "Right", "before", title="Heads steered towards correct answers")
        for row in findings["steered"]:
            cells = (str(row["k"]), f"{row['alpha']:g}", f"{row['match']:.2f}", f"{row['base_match']:.2f}")
            table.add_row(row["function"], *cells)
        out.print(table)
    for row in findings["agreement"]:
        shared = ", ".join(f"{row[key]} of {key[7:]}" for key in row if key.startswith("shared_"))
        words = f"{row['function']}: {row['first']} and {row['second']} share {shared} heads; rank correlation"
        _line(f"{words} {number(row['correlation'], '.2f')}")
    if findings["skipped"]:
        some = "; ".join(findings["skipped"][:3]) + ("; ..." if findings["skipped"][3:] else "")
        note(f"{len(findings['skipped'])} items could not be used: {some}")
    if findings["stray"]:
        names = ", ".join(f"{label} ({count})" for label, count in list(findings["stray"].items())[:8])
        note(f"labels that are no function: {names}")
    warn_answers(findings["model"], findings["base"])
    _line(findings["comet"])


def _cross(rows: list[Findings]) -> Table:
    asked = list(dict.fromkeys(row["asked"] for row in rows))
    title = f"Accuracy with the {rows[0]['k']} best heads of one function masked, by {rows[0]['ranking']}"
    table = Table("Masked", *(f"asks {name}" for name in asked), title=title)
    for masked in dict.fromkeys(row["masked"] for row in rows):
        accuracies = {row["asked"]: row["accuracy"] for row in rows if row["masked"] == masked}
        table.add_row(masked, *(f"{accuracies[name]:.2f}" for name in asked))
    return table


def _sparsity(findings: Findings) -> None:
    table = Table("", findings["dense"], findings["sparse"], "random gates", title="Dense against sparse")
    table.add_row("open edges", "100 %", f"{findings['connectivity']:.2%}", f"{findings['random connectivity']:.2%}")
    table.add_row("per query and head", *(f"{edges:.2f}" for edges in findings["edges per query"].values()))
    ce, lost = findings["ce"], findings["ce above dense"]
    table.add_row("cross-entropy", f"{ce['dense']:.4f}", f"{ce['sparse']:.4f}", f"{ce['random gates']:.4f}")
    table.add_row("above dense", "", f"{lost['mean']:+.4f} {_interval(lost, '+.4f')}", "")
    for name, accuracy in findings["accuracy"].items():
        table.add_row(f"accuracy on {name}", f"{accuracy['dense']:.3f}", f"{accuracy['sparse']:.3f}", "")
    out.print(table)
    layers = ", ".join(f"{rate:.1%}" for rate in findings["per layer"])
    out.print(f"Open edges by layer: {layers}", highlight=False)
    out.print(f"Heads that never open: {len(findings['never open'])}", highlight=False)


# A held-out divergence above the training's by more than this share of the margin is worth a word.
OVERFITTING = 0.5


def _sparsify(findings: Findings) -> None:
    history, constraint, edges = findings["history"], findings["constraint"], (findings["length"] + 1) / 2
    columns = ("Step", "Open edges", "per query", "Cross-entropy", "Dense", "Divergence", "In training", "Weight")
    table = Table(*columns, title=f"{findings['model']} made sparse")
    for row in history if len(history) <= 12 else [history[i * (len(history) - 1) // 11] for i in range(12)]:
        table.add_row(
            f"{row['step']:.0f}", f"{row['connectivity']:.2%}", f"{row['connectivity'] * edges:.2f}",
            f"{row['ce']:.4f}", f"{row['dense_ce']:.4f}", f"{row['kl']:.4f}", f"{row['train']:.4f}",
            f"{row['penalty_weight']:.3g}",
        )  # fmt: skip
    out.print(table)
    last = history[-1]
    if last[constraint] > last["target"]:
        met = f"not met: {last[constraint]:.4f}, target {last['target']:.4f}; go on with more --steps"
        out.print(f"[yellow]The constraint ({constraint}) is {met}.")
    if constraint == "kl" and last["kl"] - last["train"] > OVERFITTING * findings["margin"]:
        out.print("[yellow]It is far lower in training: the run is overfitting; give more --sequences.")
    _line(f"Model: {findings['run']}")


def _frontier(findings: Findings) -> None:
    from headscope.records import Needed

    columns = ("Point", "Open edges", "per query", "Nats above dense", "Task", "Accuracy", "Heads", "Edges")
    table = Table(
        *columns, title=f"{findings['dense']}: from dense to sparse, and what explains {findings['threshold']:.0%}"
    )
    for row in findings["rows"]:
        needs = (
            Needed(*(row[f"{what}{part}"] for part in ("", "_low", "_high", "_note"))) for what in ("heads", "edges")
        )
        table.add_row(
            row["point"], f"{row['connectivity']:.2%}", f"{row['edges_per_query']:.2f}",
            f"{row['ce_above_dense']:+.4f}", row["task"], f"{row['accuracy']:.3f}", *map(str, needs),
        )  # fmt: skip
    out.print(table)


SHOWN: dict[str, Callable[[Findings], None]] = {
    "heads": _heads, "edges": _edges, "roles": _roles, "functions": _functions, "sparsify-report": _sparsity,
    "sparsify": _sparsify, "sparsity-frontier": _frontier,
}  # fmt: skip
