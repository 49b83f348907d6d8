"""The project's one reader of evidence files.

It streams: a file is never held whole, and neither is a line beyond `LONGEST_LINE`. Evidence is
written by processes that are killed, on disks that fill up and on machines that lose power, so
whatever is wrong with a line is counted and told, and never ends the reading.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hisparse_guard.cli.report.life import EVENTS, SCHEMA, Life, Site, text, whole

NAME = "hisparse-guard-*.jsonl"
LONGEST_LINE = 4 << 20
MOST_SITES = 50_000
MOST_STACKS = 4096
MOST_LIVES = 20_000
MOST_PROBLEMS = 1000
_CHUNK = 1 << 20

# Below this many bytes, other processes cost more than they save.
_WORTH_SHARING = 16 << 20


@dataclass(slots=True)
class Problem:
    """Something about an evidence file that the operator should know."""

    file: str
    what: str
    line: int | None = None
    count: int = 1

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{where}: {self.what}" + (f" ({self.count} times)" if self.count > 1 else "")

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "problem": self.what, "count": self.count}


@dataclass(slots=True)
class Reading:
    """What a set of evidence files holds.

    Attributes:
        sites: call sites of context misses; `Life.sites` counts by index into it.
        torn: files whose last line was cut short: the process was killed or is writing it.
        unknown_schema, unknown_events: lines of a newer guard, counted and left out.
    """

    lives: list[Life] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    bytes: int = 0
    torn: list[str] = field(default_factory=list)
    unknown_schema: int = 0
    unknown_events: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)


def evidence_files(paths: Iterable[str | os.PathLike[str]], problems: list[Problem]) -> list[Path]:
    """The evidence files that `paths` name: a file as it is, a folder with all below it.

    Each file once, however many of the paths lead to it. Folders that cannot be listed are added
    to `problems`.

    Raises:
        FileNotFoundError: a path does not exist.
    """

    def unlistable(error: OSError) -> None:
        problems.append(Problem(str(error.filename), f"cannot be listed: {error.strerror}"))

    found: dict[tuple[int, int], Path] = {}
    for given in map(Path, paths):
        status = given.stat()
        if not stat.S_ISDIR(status.st_mode):
            found.setdefault((status.st_dev, status.st_ino), given)
            continue
        for folder, folders, names in os.walk(given, onerror=unlistable):
            folders.sort()
            for name in sorted(names):
                if not fnmatch.fnmatchcase(name, NAME):
                    continue
                path = Path(folder, name)
                try:
                    status = path.stat()
                except OSError:
                    continue
                # A pipe or a device by that name would block the reading.
                if stat.S_ISREG(status.st_mode):
                    found.setdefault((status.st_dev, status.st_ino), path)
    return list(found.values())


def read(paths: Iterable[str | os.PathLike[str]], jobs: int | None = None) -> Reading:
    """Reads all evidence that `paths` name.

    Args:
        paths: files and folders, of any mix of hosts and restarts.
        jobs: processes to read with; by default as many as there are cores for much evidence,
            and this one alone for little.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    problems: list[Problem] = []
    files = evidence_files(paths, problems)
    sized = sorted(((_size(f), str(f)) for f in files), reverse=True)
    if jobs is None:
        much = sum(size for size, _ in sized) >= _WORTH_SHARING and len(sized) > 1
        jobs = len(os.sched_getaffinity(0)) if much and hasattr(os, "sched_getaffinity") else 1
    if jobs > 1:
        # Dealt like cards from the largest down, so that the hands weigh about the same.
        hands = [[name for _, name in sized[i :: jobs * 4]] for i in range(jobs * 4)]
        readings = _shared([hand for hand in hands if hand], jobs)
    else:
        readings = map(_read_files, [[name for _, name in sized]])
    return _merged(readings, problems)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _shared(hands: list[list[str]], jobs: int) -> Iterator[Reading]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    done = 0
    try:
        with ProcessPoolExecutor(max_workers=jobs) as pool:
            for reading in pool.map(_read_files, hands):
                done += 1
                yield reading
    except (OSError, ImportError, BrokenProcessPool):
        # No semaphores (a container without /dev/shm) or no memory for another process.
        yield from map(_read_files, hands[done:])


def _merged(readings: Iterable[Reading], problems: list[Problem]) -> Reading:
    merged = Reading(problems=problems)
    known: dict[tuple[object, ...], int] = {}
    lives: dict[tuple[str, int | None, str | None], Life] = {}
    for reading in readings:
        merged.files += reading.files
        merged.lines += reading.lines
        merged.bytes += reading.bytes
        merged.torn += reading.torn
        merged.unknown_schema += reading.unknown_schema
        merged.unknown_events.update(reading.unknown_events)
        merged.problems += reading.problems
        numbers = []
        for site in reading.sites:
            number = known.setdefault(site.key, len(merged.sites))
            if number == len(merged.sites):
                merged.sites.append(site)
            elif (site.first or "~") < (merged.sites[number].first or "~"):
                merged.sites[number] = site
            numbers.append(number)
        for life in reading.lives:
            life.sites = {numbers[site]: count for site, count in life.sites.items()}
            other = lives.setdefault(life.key, life)
            if other is not life:
                # The same evidence copied to two places: what one process wrote is in one file.
                longer = max(other, life, key=lambda one: (one.last_seq, one.lines))
                lives[life.key] = longer
                merged.problems.append(
                    Problem(
                        life.file,
                        f"process {life.pid} of {life.host} is in {other.file} too; "
                        f"{longer.file} was used",
                    )
                )
    merged.lives = sorted(lives.values(), key=lambda one: (one.start or "", one.host, one.pid or 0))
    merged.torn.sort()
    merged.problems.sort(key=lambda problem: (problem.file, problem.line or 0))
    return merged


def _read_files(names: list[str]) -> Reading:
    reader = _Reader()
    for name in names:
        reader.file(name)
    return reader.reading


_PLAIN = rb'"([^"\\\x00-\x1f\x80-\xff]*)"'
_NUMBER = rb"(-?(?:0|[1-9][0-9]{0,17})|null)"


def _miss_head() -> re.Pattern[bytes]:
    plain, number = _PLAIN, _NUMBER
    fields = [
        (b"schema", rb"1"),
        (b"ts", plain),
        (b"event", rb'"context_miss"'),
        (b"host", plain),
        (b"pid", number),
        (b"rank", number),
        (b"world_size", number),
        (b"start", plain),
        (b"seq", number),
        (b"count", number),
        (b"at_exit", rb"(?:true|false)"),
    ]
    return re.compile(
        rb"\{" + rb"".join(b'"' + name + b'": ?' + value + b", ?" for name, value in fields)
    )


# A `context_miss` line as the guard writes it. Most lines of a large body of evidence are of this
# kind, and what is behind the head is mostly a stack that many processes have in common: it is
# parsed once, and after that compared, but for the one number that differs between processes.
# A line of any other form is parsed whole, to the same end.
_MISS_HEAD = _miss_head()
# What of it differs between two lines of one process: `ts`, and these.
_MISS_SEQ = re.compile(
    rb'([1-9][0-9]{0,17}), ?"count": ?([1-9][0-9]{0,17}), ?"at_exit": ?(?:true|false), ?'
)
_STAMP = len("2026-03-01T12:00:00.000000Z")
_STAMP_BYTES = b"0123456789-:.TZ"
_LEFT_S = b'"left_s":'
# So much of a miss tells it from most others: its `where`.
_KEY = 200
_MOST_ALIKE = 16
_DECIMAL = re.compile(rb" ?(?:-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,20})?(?:e-?[0-9]{1,2})?|null)")


@dataclass(slots=True)
class _Known:
    """A form of miss that was parsed once: what lies before and behind the number of `left_s`."""

    before: bytes
    behind: bytes
    site: tuple[int | None, Site]
    # The form that came after it the last time: processes of a server meet the same sites in
    # much the same order.
    then: _Known | None = None


class _Reader:
    """Reads files one after the other into one `Reading`."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._site_numbers: dict[tuple[object, ...], int] = {}
        # By the lengths of what lies before and behind the number, and how the first begins.
        self._known: dict[tuple[int, int, bytes], list[_Known]] = {}
        self._last: _Known | None = None
        self._stacks = 0
        self._lives: dict[tuple[str, int | None, str | None], Life] = {}
        # Of the last miss: what its line had before `ts`, and between that and `seq`.
        self._head: tuple[bytes, bytes, Life] | None = None
        self._problems: dict[str, Problem] = {}
        self._name = ""

    def file(self, name: str) -> None:
        self._name = name
        self._problems = {}
        self._lives = {}
        self._head = None
        self.reading.files += 1
        try:
            # Evidence of a live server grows while it is read: what is there now is read.
            with open(name, "rb", buffering=0) as handle:  # noqa: PTH123 - a name, many times
                self._lines(handle)
        except OSError as error:
            self._problem(f"cannot be read: {error.strerror or error}")
        for life in self._lives.values():
            if life.lost:
                self._problem(
                    f"process {life.pid} numbered {life.last_seq} lines, {life.lost} of them "
                    "are not here (a full disk, a torn line, or a cut file)"
                )
        self.reading.lives += self._lives.values()

    def _problem(self, what: str, line: int | None = None) -> None:
        known = self._problems.get(what)
        if known is not None:
            known.count += 1
        elif len(self.reading.problems) < MOST_PROBLEMS:
            self._problems[what] = Problem(self._name, what, line)
            self.reading.problems.append(self._problems[what])

    def _lines(self, handle: BinaryIO) -> None:
        number = 0
        rest = b""
        skipping = False
        bad = 0
        first_bad: int | None = None
        expected, miss, take = self._expected, self._miss, self._other
        while chunk := handle.read(_CHUNK):
            self.reading.bytes += len(chunk)
            begin = 0
            if skipping:
                begin = chunk.find(b"\n") + 1
                if begin == 0:
                    continue
                skipping = False
                number += 1
            elif rest:
                chunk = rest + chunk
            # In place: copying each line would cost more than all else.
            while True:
                while after := expected(chunk, begin):
                    number += 1
                    begin = after
                end = chunk.find(b"\n", begin)
                if end < 0:
                    break
                number += 1
                if not miss(chunk, begin, end) and end > begin and not take(chunk[begin:end]):
                    bad += 1
                    first_bad = first_bad or number
                begin = end + 1
            rest = chunk[begin:]
            if len(rest) > LONGEST_LINE:
                if rest.strip(b"\0"):
                    bad += 1
                    first_bad = first_bad or number + 1
                else:
                    self._problem("filled with NUL bytes (the machine lost power?)", number + 1)
                rest = b""
                skipping = True
        if rest.strip(b"\0 \r"):
            # No newline at the end: cut short, unless what is there happens to be whole.
            if not self._take(rest):
                self.reading.torn.append(self._name)
                self._torn()
        elif rest:
            self._problem("ends in NUL bytes (the machine lost power?)", number + 1)
            self._torn()
        self.reading.lines += number + (1 if rest else 0)
        if bad:
            self._problem(
                "not an evidence line" if bad == 1 else f"{bad} lines are not evidence, first this",
                first_bad,
            )

    def _torn(self) -> None:
        # A file has the lives of one pid, one behind the other.
        for life in reversed(self._lives.values()):
            life.torn = True
            break

    def _take(self, line: bytes) -> bool:
        """Takes in one line; False when it is not evidence."""
        return self._miss(line) or self._other(line)

    def _other(self, line: bytes) -> bool:
        """Takes in a line that need not be a miss in the guard's own form."""
        self._head = None
        parsed = _parse(line)
        if parsed is not None and not line.isascii() and not _is_utf8(line):
            self._problem("bad UTF-8, shown as \N{REPLACEMENT CHARACTER}")
        if parsed is None:
            # A line torn by a kill, with the first line of the pid's next life behind it.
            behind = line.rfind(b'{"schema"')
            parsed = _parse(line[behind:]) if behind > 0 else None
            if parsed is None:
                return not line.strip(b"\0 \r\t")
            self._problem(f"a torn line before one of process {whole(parsed.get('pid'))}")
        elif b"\0" in line:
            self._problem("NUL bytes before a line (the machine lost power?)")
        self._event(parsed)
        return True

    def _event(self, line: Mapping[str, Any]) -> None:
        if line.get("schema") != SCHEMA:
            self.reading.unknown_schema += 1
            return
        event = line.get("event")
        if not isinstance(event, str) or event not in EVENTS:
            self.reading.unknown_events[text(event) or "?"] += 1
            return
        life = self._life(text(line.get("host")), whole(line.get("pid")), text(line.get("start")))
        if event != "context_miss":
            life.feed(line)
            return
        life.envelope(text(line.get("ts")), whole(line.get("seq")))
        life.rank = _or(whole(line.get("rank")), life.rank)
        life.world_size = _or(whole(line.get("world_size")), life.world_size)
        site = Site.of(line)
        self._count(life, self._number(site), whole(line.get("count")) or 1, site)

    def _life(self, host: str | None, pid: int | None, start: str | None) -> Life:
        key = (host or "?", pid, start)
        life = self._lives.get(key)
        if life is None:
            life = Life(host or "?", pid, start, self._name)
            if len(self._lives) < MOST_LIVES:
                self._lives[key] = life
            else:
                self._problem(f"holds more than {MOST_LIVES} processes; the rest is left out")
        return life

    def _number(self, site: Site) -> int | None:
        number = self._site_numbers.get(site.key)
        if number is None and len(self.reading.sites) < MOST_SITES:
            number = self._site_numbers[site.key] = len(self.reading.sites)
            self.reading.sites.append(site)
        return number

    def _count(self, life: Life, number: int | None, count: int, site: Site) -> None:
        if number is None:
            life.misses_uncounted += 1
            return
        if number not in life.sites and site.origin != "trace":
            life.note(
                life.last_ts,
                "context_miss",
                f"context miss at {site.where}: vLLM alone would have chosen "
                f"{site.vllm_alone or 'none'}, used {site.used or 'none'}",
            )
        # Lines of one site carry a running count.
        life.sites[number] = max(count, life.sites.get(number, 0))

    def _expected(self, data: bytes, begin: int) -> int:
        """Takes in the miss at `begin` if it is of the process and the form that are expected
        next: most lines are, and comparing is all that they cost.

        Returns:
            Where the next line begins; 0 where this one has to be looked at.
        """
        head, last = self._head, self._last
        if head is None or last is None or (form := last.then) is None:
            return 0
        opening, between, life = head
        stamp = begin + len(opening)
        rest = stamp + _STAMP
        if not data.startswith(between, rest) or not data.startswith(opening, begin):
            return 0
        ts = data[stamp:rest]
        found = _MISS_SEQ.match(data, rest + len(between))
        if found is None or ts.translate(None, _STAMP_BYTES):
            return 0
        body = found.end()
        if not data.startswith(form.before, body):
            return 0
        left_s = _DECIMAL.match(data, body + len(form.before))
        if left_s is None or not data.startswith(form.behind, left_s.end()):
            return 0
        end = left_s.end() + len(form.behind)
        if not data.startswith(b"\n", end):
            return 0
        self._last = form
        self._counted(life, ts, found, form)
        return end + 1

    def _counted(self, life: Life, ts: bytes, found: re.Match[bytes], form: _Known) -> None:
        seq, count = found.groups()
        life.envelope(ts.decode(), int(seq))
        number, site = form.site
        if count != b"1" and number in life.sites:
            life.sites[number] = max(int(count), life.sites[number])
        else:
            self._count(life, number, int(count), site)

    def _miss(self, data: bytes, begin: int = 0, stop: int | None = None) -> bool:
        """Takes in a `context_miss` line in the guard's own form; False for any other.

        Args:
            data: what holds the line, from `begin` to `stop`, its end by default.
        """
        if stop is None:
            stop = len(data)
        head = self._head
        if head is not None:
            # Most lines follow one of the same process, and differ from it in little.
            opening, between, life = head
            stamp = begin + len(opening)
            rest = stamp + _STAMP
            ts = data[stamp:rest]
            if (
                data.startswith(between, rest)
                and data.startswith(opening, begin)
                and not ts.translate(None, _STAMP_BYTES)
                and (found := _MISS_SEQ.match(data, rest + len(between), stop)) is not None
            ):
                form = self._form(data, begin, found.end(), stop)
                if form is None:
                    return False
                self._counted(life, ts, found, form)
                return True
        whole_head = _MISS_HEAD.match(data, begin, stop)
        if whole_head is None:
            return False
        form = self._form(data, begin, whole_head.end(), stop)
        if form is None:
            return False
        stamped, host, pid, rank, world, start, seq, count = whole_head.groups()
        life = self._life(_text(host), _whole(pid), _text(start))
        life.envelope(_text(stamped), _whole(seq))
        life.rank = _or(_whole(rank), life.rank)
        life.world_size = _or(_whole(world), life.world_size)
        number, site = form.site
        self._count(life, number, _whole(count) or 1, site)
        at, behind = whole_head.span(1)
        if behind - at == _STAMP:
            self._head = data[begin:at], data[behind : whole_head.start(7)], life
        return True

    def _form(self, data: bytes, begin: int, body: int, stop: int) -> _Known | None:
        """The form of the miss whose line is from `begin` to `stop`, its head up to `body`; None
        where it is not in the guard's own form."""
        at = data.rfind(_LEFT_S, body, stop) + len(_LEFT_S)
        left_s = _DECIMAL.match(data, at, stop) if at > body else None
        if left_s is None:
            return None
        tail = left_s.end()
        key = (at - body, stop - tail, data[body : body + _KEY])
        for form in self._known.get(key, ()):
            if data.startswith(form.before, body) and data.startswith(form.behind, tail):
                return self._next(form)
        line = data[begin:stop]
        parsed = _parse(line) if line.isascii() else None
        if parsed is None:
            return None
        site = Site.of(parsed)
        form = _Known(data[body:at], data[tail:stop], (self._number(site), site))
        if self._stacks >= MOST_STACKS:
            self._known.clear()
            self._last = None
            self._stacks = 0
        self._stacks += 1
        same = self._known.setdefault(key, [])
        if len(same) < _MOST_ALIKE:
            same.append(form)
        return self._next(form)

    def _next(self, form: _Known) -> _Known:
        if self._last is not None:
            self._last.then = form
        self._last = form
        return form


def _text(value: bytes) -> str | None:
    return text(value.decode())


def _whole(value: bytes) -> int | None:
    return None if value == b"null" else int(value)


def _or(new: int | None, old: int | None) -> int | None:
    return old if new is None else new


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line.strip(b"\0").decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
