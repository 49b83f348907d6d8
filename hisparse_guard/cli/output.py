"""What commands write for people: pages from templates, and files that are there whole or not."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2
    from rich.console import Console


def plural(count: int, noun: str, many: str | None = None) -> str:
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def printable(text: str, keep: str = "", longest: int = 2000) -> str:
    """Text from a file as it may be shown: control sequences would reach a terminal, and lone
    surrogates cannot be encoded at all.

    Args:
        keep: characters that stay as they are.
        longest: in characters; what is longer is cut.
    """
    if len(text) > longest:
        text = text[:longest] + "…"
    if text.isprintable():
        return text
    return "".join(
        c
        if c.isprintable() or c in keep
        else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )


def _finalize(value: Any) -> Any:
    # Markup, a subclass, is ours.
    return printable(value, keep="\n\t", longest=1 << 20) if type(value) is str else value


def templates() -> jinja2.Environment:
    """The page templates of this package; all values are escaped."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("hisparse_guard.cli", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
    )


def render_page(template: str, **values: Any) -> str:
    """One self-contained HTML page.

    Args:
        template: a file in ``templates/``, which extends ``base.html.j2``.
        values: what the template asks for; a missing one raises ``jinja2.UndefinedError``.
    """
    return "".join(page_parts(template, **values))


def page_parts(template: str, **values: Any) -> Iterator[str]:
    """The same page, a part at a time: a large one need not be held whole."""
    # As `_finalize`, which does not see what filters such as `join` have made into markup.
    for part in templates().get_template(template).generate(**values):
        yield printable(part, keep="\n\t", longest=len(part))


def replace_file(
    path: str | os.PathLike[str], content: str | bytes | Iterable[str], *, private: bool = False
) -> None:
    """Writes `content`, text or its parts as UTF-8, to `path`, which holds the old or the new
    content at any moment.

    Args:
        private: for the owner alone; otherwise as the umask says.

    Raises:
        OSError: the folder is missing, full or not writable; `path` is as it was.
    """
    parts = [content] if isinstance(content, (str, bytes)) else content
    target = Path(path)
    if target.exists() and not target.is_file():
        # A device or a pipe (/dev/stdout) cannot be replaced.
        with target.open("wb") as handle:
            handle.writelines(_encoded(parts))
        return
    # What a link leads to is replaced, never the link: /dev/stdout is one.
    target = target.resolve()
    descriptor, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.writelines(_encoded(parts))
        if not private:
            # mkstemp keeps others out, but node_exporter and colleagues are to read the result.
            mask = os.umask(0)
            os.umask(mask)
            Path(partial).chmod(0o666 & ~mask)
        Path(partial).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(partial).unlink()
        raise


def _encoded(parts: Iterable[str | bytes]) -> Iterator[bytes]:
    return (part.encode() if isinstance(part, str) else part for part in parts)


def print_table(console: Console, table: Any) -> None:
    """Prints a table of rich's, whose last column is filled with blanks: not into a file."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        console.out(line.rstrip(), highlight=False)
