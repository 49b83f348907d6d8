"""``python -m tests.cli.masking.vocabulary``: writes the words that the archive may keep.

Single words that vLLM, PyTorch, FlashInfer, the web server, Kubernetes and this package use for
themselves: in messages, names of functions, modules, fields, flags and variables. Sorted, so that
nothing of the texts is left but the words.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import hisparse_guard
from tests.support import environments

OUT = Path(hisparse_guard.__file__).parent / "cli" / "masking" / "words.txt"
PACKAGES = ("torch", "uvicorn", "starlette", "fastapi")
RELEASES = ("0.32.0", "0.34.0")
# What few files use may be an author's own.
FEWEST_FILES = 5
_CALLS = ("debug", "info", "warning", "error", "critical", "exception", "info_once", "warning_once")
# As `policy.words` splits a token.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_WITH_DIGITS = re.compile(r"(?<![A-Za-z0-9])[a-z]{1,8}\d{1,3}[a-z]{0,2}(?![A-Za-z0-9])")


def words(text: str) -> set[str]:
    """Its words and, with their digits, short names such as `fp8`, in small letters."""
    found = {one.lower() for one in _WORD.findall(text)}
    return {one for one in found if len(one) < 25} | set(_WITH_DIGITS.findall(text.lower()))


def _texts(tree: ast.AST) -> Iterator[str]:
    """Texts of log calls and exceptions, and names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _CALLS or str(name).endswith(("Error", "Exception", "Warning")):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                        yield inner.value
            yield from (one.arg for one in node.keywords if one.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"--[a-z][a-z0-9-]+|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+", node.value)
        ):
            yield node.value


def of_code(folders: Iterable[Path]) -> Counter[str]:
    """Words to the number of files that use them."""
    found: Counter[str] = Counter()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, UnicodeDecodeError, RecursionError):
                continue
            found.update(words(" ".join((*path.relative_to(folder.parent).parts, *_texts(tree)))))
    return found


def of_text(paths: Iterable[Path]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        found |= words(path.read_text(encoding="utf-8", errors="replace"))
    return found


def vocabulary() -> list[str]:
    warnings.simplefilter("ignore")
    site = next(environments.server_python().parent.parent.glob("lib/python*/site-packages"))
    code = of_code(
        [
            *(environments.vllm_release(one) / "vllm" for one in RELEASES),
            *(site / one for one in PACKAGES),
            Path(ast.__file__).parent / "asyncio",
            Path(ast.__file__).parent / "concurrent",
            Path(ast.__file__).parent / "multiprocessing",
        ]
    )
    found = {word for word, files in code.items() if files >= FEWEST_FILES}
    ours, here = Path(hisparse_guard.__file__).parent, Path(__file__).parents[2]
    texts = [path for path in ours.rglob("*") if path.suffix in (".py", ".toml", ".j2")]
    texts += [path for path in (here / "data" / "logs").iterdir() if path.suffix == ".log"]
    found |= of_text([*texts, Path(__file__).with_name("more-words.txt")])
    # What people take for passwords, and no message needs.
    left_out = of_text([Path(__file__).with_name("not-words.txt")])
    return sorted(found - left_out)


def main() -> int:
    found = vocabulary()
    lines = [" ".join(found[at : at + 200]) for at in range(0, len(found), 200)]
    OUT.write_text("\n".join(lines) + "\n")
    print(f"{len(found)} words in {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
