"""The results as a markdown page."""

from __future__ import annotations

MODES = {
    "dry": "no GPU (gloo in place of the kernels)",
    "one": "two ranks on one GPU",
    "two": "two GPUs, one rank each",
}


def markdown(results):
    """The page, of what there is so far."""
    environment = results.get("environment", {})
    lines = [
        f"Measured {results['date'][:10]}, guard {results['guard']}, {MODES[results['mode']]}, "
        f"hidden size {results['hidden']}: "
        + ", ".join(
            f"{k} {environment[k]}"
            for k in ("gpu", "driver", "torch", "cuda", "nccl", "vllm", "flashinfer", "python")
            if environment.get(k)
        )
        + ".",
        "",
    ]
    rows = results.get("times", []) + results.get("python", [])
    if rows:
        lines += [
            "| µs, bfloat16 | tokens | guarded | environment | ratio | control |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['how']} | {r['tokens']} | {r['guarded']:.1f} | {r['environment']:.1f} "
            f"| {spread(r, 'ratio')} | {spread(r, 'control')} |"
            for r in rows
        ]
        lines += ["", "Ratios: of the medians, and the quartiles of the rounds' own ratios.", ""]
    worst = {}
    for row in results.get("errors", ()):
        worst.setdefault((row["what"], row["dtype"]), []).append(row)
    if worst:
        lines += ["| guarded | dtype | tokens | largest relative error |", "|---|---|---|---|"]
        for (what, dtype), rows in worst.items():
            tokens = [r["tokens"] for r in rows]
            error = max((r["error"] for r in rows), key=lambda e: (e != e, e))
            lines.append(f"| {what} | {dtype} | {min(tokens)} to {max(tokens)} | {error:.2g} |")
        lines.append("")
    lines += [f"- {'ok' if c['ok'] else '**failed**'}: {c['name']}" for c in results["checks"]]
    lines += ["", *(f"- not shown: {what}" for what in results["not shown"])]
    return "\n".join(lines) + "\n"


def spread(row, name):
    low, high = row[f"{name} spread"]
    return f"{row[name]:.3f} ({low:.3f} to {high:.3f})"
