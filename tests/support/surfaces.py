"""Generates ledger_client/blocking.py and aio.py from the async classes, and keyword arguments.

    python tests/support/surfaces.py --write

Signatures are copied, and so is the first paragraph of each docstring. What a call does, its
arguments and its errors are documented once, where it is implemented. Options are the fields of a
struct; the TypedDict of the same keyword arguments, beside it, gets its body from there.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ledger_client"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Noun:
    """A class that has a twin in each surface.

    Attributes:
        name: of the class.
        module: where it is, below ledger_client.
        parents: classes whose members it has, too.
        twin: its name in the surfaces, behind the prefix.
        only: the members that users need; without them all public ones.
        base: suffix of the hand-written base of its twins.
        nouns: attributes that have twins themselves, by name and twin.
        attributes: other ones that are set in the constructor: name, type and docstring.
        ends: suffix of a further hand-written base, which has close().
        keeps_owner: its twins keep the twin whose call returned it.
    """

    name: str
    module: str
    twin: str
    parents: tuple[Noun, ...] = ()
    only: tuple[str, ...] = ()
    base: str = ""
    nouns: tuple[tuple[str, str], ...] = ()
    attributes: tuple[tuple[str, str, str], ...] = ()
    ends: str = ""
    keeps_owner: bool = False


TOPICS = Noun("Topics", "topics/topics", "Topics")
NOUNS = [
    Noun(
        "Client",
        "client",
        "Client",
        nouns=(
            ("topics", "Topics"),
            ("ledgers", "Ledgers"),
            ("cluster", "Cluster"),
            ("groups", "Groups"),
            ("cuts", "Cuts"),
            ("timestamps", "Timestamps"),
        ),
        ends="Connection",
    ),
    Noun("ClientTopics", "client", "Topics", parents=(TOPICS,)),
    Noun("ClientLedgers", "client_ledgers", "Ledgers"),
    Noun("Cluster", "cluster/cluster", "Cluster"),
    Noun("Groups", "groups/groups", "Groups"),
    Noun("Cuts", "topics/cuts", "Cuts"),
    Noun("Timestamps", "topics/timestamps", "Timestamps"),
    Noun("Producer", "topics/producing/producer", "Producer", base="Sends", ends="Opened"),
    Noun(
        "Ticket",
        "topics/producing/partition_writer",
        "Ticket",
        attributes=(
            ("sequence", "int", "The message's number if the producer has a name, else -1."),
        ),
    ),
    Noun(
        "TopicReader",
        "topics/reading/reader",
        "TopicReader",
        base="Messages",
        only=(
            *("next_messages", "read_batches", "position", "seek", "pause", "resume"),
            *("tick", "gaps", "caught_up", "wait_caught_up", "ended", "lag"),
        ),
        ends="Opened",
    ),
    Noun(
        "GroupConsumer",
        "groups/consumer",
        "GroupConsumer",
        base="Consumption",
        only=(
            *(
                "poll",
                "poll_batches",
                "commit",
                "commit_nowait",
                "committed",
                "position",
                "seek",
                "pause",
                "resume",
            ),
            *("assignment", "lag"),
            *("ack", "ack_nowait", "flush", "nack", "extend", "deliveries"),
        ),
        ends="Opened",
    ),
    Noun(
        "LedgerWriter",
        "ledgers/writer",
        "LedgerWriter",
        only=("id", "metadata", "last_confirmed", "closed", "append", "append_many", "close"),
        ends="Opened",
    ),
    Noun(
        "LedgerReader",
        "ledgers/reader",
        "LedgerReader",
        only=(
            *("id", "metadata", "closed", "last_confirmed", "refresh"),
            *("read", "read_batches", "follow"),
        ),
        ends="Opened",
    ),
    Noun("Follower", "ledgers/reader", "Follower", base="Entries", keeps_owner=True),
]
TWINS = {noun.name: noun.twin for noun in NOUNS}
KEEPING_OWNER = {noun.name for noun in NOUNS if noun.keeps_owner}
ITEMS = {"RecordBatches": "pa.RecordBatch", "BatchReads": "EntryBatch"}
"""Async iterators without other members, by what they yield."""
OWN = {
    ("Producer", "send"),
    ("TopicReader", "next_messages"),
    ("TopicReader", "tick"),
    ("GroupConsumer", "poll"),
    ("GroupConsumer", "poll_batches"),
    ("LedgerWriter", "close"),
    ("Follower", "next_batch"),
    ("Follower", "position"),
}
"""Members that the hand-written base has, with an underscore before their names."""
INTERNAL = {"publish_events"}
SETTINGS = {
    "topics/producing/producer_options": ("ProducerOptions", "ProducerSettings"),
    "topics/reading/options": ("ReadOptions", "ReadSettings"),
    "groups/options": ("ConsumerOptions", "ConsumerSettings"),
    "jobs/replay/options": ("ReplayOptions", "ReplaySettings"),
}
"""By module, the struct of options and the TypedDict of the same keyword arguments."""
LATE = {
    "pa": "import pyarrow as pa",
    "ClientMetrics": "from ledger_client.metrics import ClientMetrics",
}
"""Imported for types alone: loading them takes long."""


@dataclass(frozen=True)
class Surface:
    """One of the two generated modules."""

    name: Literal["blocking", "aio"]
    prefix: str
    head: str

    @property
    def is_async(self) -> bool:
        return self.name == "aio"


BLOCKING = Surface(
    "blocking",
    "Blocking",
    '''"""The same calls for code without trio: scripts, threads, notebooks, Spark executors.

    with blocking.connect("bookie://127.0.0.1:3181") as client:
        client.topics.create("shop/orders")
        with client.producer("shop/orders") as producer:
            message_id = producer.send(b"one", key=b"k")
        with client.reader("shop/orders") as reader:
            for message in reader:
                ...

Without ``with``, as in a notebook, what is open stays so until its close():

    client = blocking.connect("bookie://127.0.0.1:3181")
    producer = client.producer("shop/orders")
    ...
    client.close()  # closes the producer first

A client runs trio in one thread and may be used from any number of others. Each call costs two
thread switches, about 0.1 ms: so prefer send_many() and append_many(). Errors are those of
ledger_client. Ctrl-C ends a call at once, as cancelling it would. Functions that you pass, such as
on_progress and value_encoder, are called in trio's thread; on_assigned and on_revoked in a worker
thread; and value_decoder where Message.decoded is read.

A client does not survive a fork (os.fork, multiprocessing's "fork", gunicorn's preload): in the
child its calls raise ClientClosed. Connect in each process.

Generated by tests/support/surfaces.py; what calls do is documented in ledger_client.
"""
''',
)
AIO = Surface(
    "aio",
    "Aio",
    '''"""The same calls for programs that run asyncio or uvloop: FastAPI, aiohttp, notebooks.

    async with aio.connect("bookie://127.0.0.1:3181") as client:
        await client.topics.create("shop/orders")
        async with client.producer("shop/orders") as producer:
            message_id = await producer.send(b"one", key=b"k")
        async with client.reader("shop/orders") as reader:
            async for message in reader:
                ...

Without a block, as where a framework has hooks for start and stop, ``await`` opens the same, until
its close():

    client = await aio.connect("bookie://127.0.0.1:3181")
    producer = await client.producer("shop/orders")
    ...
    await client.close()  # closes the producer first

A client runs trio in one thread and belongs to the event loop in which it was connected. Tasks that
send at the same time share batches, so many tasks are faster than one. Errors are those of
ledger_client. A task that is cancelled or times out cancels its call, and waits until that has
ended. Functions that you pass, such as on_progress and value_encoder, are called in trio's thread;
on_assigned and on_revoked in the loop; and value_decoder where Message.decoded is read.

A client does not survive a fork: in the child its calls raise ClientClosed. Connect in each
process.

Generated by tests/support/surfaces.py; what calls do is documented in ledger_client.
"""
''',
)


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module}.py").read_text())


def class_of(noun: Noun) -> ast.ClassDef:
    found = [n for n in tree_of(noun.module).body if isinstance(n, ast.ClassDef)]
    return next(node for node in found if node.name == noun.name)


def members(noun: Noun) -> list[tuple[Function, str]]:
    """Public methods and properties with the modules they are in; list() comes last.

    Behind it, ``list[...]`` in a signature would mean the method.
    """
    found = [each for parent in noun.parents for each in members(parent)]
    others = {*INTERNAL, *(name for name, _ in noun.nouns)}
    if noun.ends and "close" not in noun.only:
        others.add("close")
    for node in class_of(noun).body:
        if not isinstance(node, Function) or node.name.startswith("_") or node.name in others:
            continue
        if not noun.only or node.name in noun.only:
            found.append((node, noun.module))
    missing = set(noun.only) - {node.name for node, _ in found}
    assert not missing, f"{noun.name} has no {missing}"
    return sorted(found, key=lambda each: each[0].name == "list")


def decorators(node: Function) -> set[str]:
    return {ast.unparse(each) for each in node.decorator_list}


def inside(annotation: ast.expr | None, *outer: str) -> str:
    """Return X of an annotation outer[X], or ""."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in outer:
        return ast.unparse(annotation.slice)
    return ""


class Writer:
    """Writes one surface."""

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self._prefix = surface.prefix
        self._used: dict[str, str] = {}  # names in signatures, by the module that has them
        self._lines: list[str] = []

    def module(self) -> str:
        for noun in NOUNS:
            self._class(noun)
        body = "\n".join(self._lines)
        return self._surface.head + self._imports() + self._connect() + body

    # --- one class ---------------------------------------------------------------------

    def _class(self, noun: Noun) -> None:
        twin = self._prefix + noun.twin
        prefix = "Loop" if self._surface.is_async else "Blocking"
        base = f"{prefix}{noun.base}"
        base = base if noun.base else f"{'Looped' if self._surface.is_async else 'Blocking'}"
        self._use(noun.name, noun.module)
        base += "" if noun.base else f"[{noun.name}]"
        base += f", {prefix}{noun.ends}" if noun.ends else ""
        see = f"ledger_client.{noun.name}" if noun.module != "client" else "ledger_client.Client"
        summary = first_paragraph(class_of(noun)) or f"See {see}."
        self._lines += ["", "", f"class {twin}({base}):", f'    """{summary}"""']
        if noun.nouns:
            portal = "LoopPortal" if self._surface.is_async else "Portal"
            self._lines += [
                "",
                f"    def __init__(self, portal: {portal}[object], inner: {noun.name}) -> None:",
                "        super().__init__(portal, inner)",
                *(
                    f"        self.{name} = {self._prefix}{kind}(portal, inner.{name})"
                    for name, kind in noun.nouns
                ),
            ]
        for name, kind, text in noun.attributes:
            self._lines += [
                "",
                "    @property",
                f"    def {name}(self) -> {kind}:",
                f'        """{text}"""',
                f"        return self._inner.{name}",
            ]
        for node, module in members(noun):
            self._lines += ["", *self._member(noun, node, module)]

    def _member(self, noun: Noun, node: Function, module: str) -> list[str]:
        for name in names_in(node):
            self._use(name, module)
        summary = first_paragraph(node)
        text = [f'        """{summary}"""'] if summary else []
        result = ast.unparse(node.returns) if node.returns else "None"
        if decorators(node) & {"property", "cached_property"}:
            return [
                "    @property",
                f"    def {node.name}(self) -> {result}:",
                *text,
                f"        return self.{self._of_base(noun, node) or f'_inner.{node.name}'}",
            ]
        return self._method(noun, node, text, result)

    def _method(self, noun: Noun, node: Function, text: list[str], result: str) -> list[str]:
        is_async, call = self._surface.is_async, arguments(node)
        target = f"self._inner.{node.name}"
        passed = ", ".join([target, *call])
        parameters = ast.unparse(node.args)
        opened = inside(node.returns, "Opening")
        if opened:
            twin = self._twin(opened)
            open_, shown = ("_opening", f"LoopOpening[{twin}]") if is_async else ("_open", twin)
            if opened == "GroupConsumer":
                own = "in_loop(settings, self._portal)" if is_async else "in_worker(settings)"
                call = [*call[:-1], f"**{own}"]
            return [
                f"    def {node.name}({parameters}) -> {shown}:",
                *text,
                f"        return self.{open_}({twin}, {target}({', '.join(call)}))",
            ]
        items = ITEMS.get(result, "") or inside(node.returns, "AsyncIterator")
        if items:
            self._use(items, noun.module)
            iterator = "AsyncIterator" if is_async else "Iterator"
            return [
                f"    def {node.name}({parameters}) -> {iterator}[{items}]:",
                *text,
                f"        return self._iterate(self._call_sync({passed}))",
            ]
        if isinstance(node, ast.AsyncFunctionDef):
            def_, wait = ("async def", "await ") if is_async else ("def", "")
            run = f"{wait}self._call({passed})"
            if own := self._of_base(noun, node):
                run = f"{wait}self.{own}({', '.join(call)})"
        else:
            def_, run = "def", f"self._call_sync({passed})"
        if result in TWINS:
            owner = ", self" if result in KEEPING_OWNER else ""
            run = f"{self._twin(result)}(self._portal, {run}{owner})"
        shown = self._twin(result) if result in TWINS else result
        return [
            f"    {def_} {node.name}({parameters}) -> {shown}:",
            *text,
            f"        {'' if result == 'None' else 'return '}{run}",
        ]

    def _of_base(self, noun: Noun, node: Function) -> str:
        """Return the name of the member in the hand-written base, "" if it has none."""
        return f"_{node.name}" if (noun.name, node.name) in OWN else ""

    def _twin(self, name: str) -> str:
        return self._prefix + TWINS[name]

    # --- the module --------------------------------------------------------------------

    def _use(self, name: str, module: str) -> None:
        self._used.setdefault(name, module)

    def _imports(self) -> str:
        late, lines = set(), set()
        for name, module in self._used.items():
            if name.partition(".")[0] in LATE:
                late.add(LATE[name.partition(".")[0]])
            else:
                lines.add(import_of(name, module))
        lines.discard("")
        support = (
            "from ledger_client.surfaces.loops import LoopConnection, LoopConsumption, "
            "LoopEntries, LoopMessages, LoopOpened, LoopOpening, LoopPortal, LoopSends, Looped, "
            "in_loop, start_portal"
            if self._surface.is_async
            else "from ledger_client.surfaces.threads import Blocking, BlockingConnection, "
            "BlockingEntries, BlockingConsumption, BlockingMessages, BlockingOpened, "
            "BlockingSends, in_worker"
        )
        fixed = [
            "from __future__ import annotations",
            "from collections.abc import AsyncIterator, Iterator",
            "from functools import partial",
            "from typing import TYPE_CHECKING",
            "from ledger_client import client as trio_client",
            "from ledger_client.options import DEFAULT_OPTIONS, Options",
            *([] if self._surface.is_async else ["from ledger_client.portal import Portal"]),
            support,
        ]
        types = "".join(f"    {each}\n" for each in sorted(late))
        names = [f'"{self._prefix}{noun.twin}"' for noun in NOUNS]
        exported = ", ".join(sorted([*names, '"connect"']))
        return (
            "\n"
            + "\n".join([*fixed, *sorted(lines)])
            + f"\n\nif TYPE_CHECKING:\n{types}"
            + f"\n__all__ = [{exported}]\n"
        )

    def _connect(self) -> str:
        if self._surface.is_async:
            return '''

def connect(
    url: str | None = None,
    *,
    profile: str | None = None,
    timeout_s: float | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> LoopOpening[AioClient]:
    """Connect to a cluster, as ledger_client.connect() does: ``async with`` it, or await it."""

    async def open_it() -> AioClient:
        connect_it = partial(
            trio_client.connect, url, profile=profile, timeout_s=timeout_s, options=options
        )
        portal = await start_portal(connect_it)
        return AioClient(portal, portal.value)

    return LoopOpening(open_it, what="client", call="aio.connect(...)")
'''
        return '''

def connect(
    url: str | None = None,
    *,
    profile: str | None = None,
    timeout_s: float | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> BlockingClient:
    """Connect to a cluster, as ledger_client.connect() does, until close() or the end of with."""
    connect_it = partial(
        trio_client.connect, url, profile=profile, timeout_s=timeout_s, options=options
    )
    portal = Portal(connect_it)
    return BlockingClient(portal, portal.value)
'''


def first_paragraph(node: Function | ast.ClassDef) -> str:
    text = ast.get_docstring(node) or ""
    return " ".join(text.partition("\n\n")[0].split())


def names_in(node: Function) -> set[str]:
    """Names that the signature uses: of types and of default values."""
    parts = [node.args, *([node.returns] if node.returns else [])]
    found = {each.id for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)}
    return found - {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}


def import_of(name: str, module: str) -> str:
    """Return the line that imports *name* as *module* has it; "" for what is built in."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and name in {a.asname or a.name for a in node.names}:
            return f"from {node.module} import {name}"
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return f"from ledger_client.{module.replace('/', '.')} import {name}"
        if isinstance(node, ast.Assign) and name in {ast.unparse(t) for t in node.targets}:
            return f"from ledger_client.{module.replace('/', '.')} import {name}"
    return ""


def arguments(node: Function) -> list[str]:
    """Return the arguments as the call passes them on."""
    args = node.args
    passed = [each.arg for each in [*args.posonlyargs, *args.args] if each.arg != "self"]
    passed += [f"*{args.vararg.arg}"] if args.vararg else []
    passed += [f"{each.arg}={each.arg}" for each in args.kwonlyargs]
    return passed + ([f"**{args.kwarg.arg}"] if args.kwarg else [])


def generated(surface: Surface) -> str:
    """Return the module as it should be."""
    text = Writer(surface).module()
    for command in (
        ["check", "--quiet", "--fix", "--select", "I,F401,F811", "--exit-zero"],
        ["format", "--quiet"],
    ):
        text = subprocess.run(
            [
                sys.executable,
                "-m",
                "ruff",
                *command,
                "--stdin-filename",
                str(path_of(surface)),
                "-",
            ],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return text


def with_settings(module: str) -> str:
    """Return a module of SETTINGS with the TypedDict as its struct defines it."""
    text = settings_path(module).read_text()
    tree = ast.parse(text)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    struct, settings = (classes[name] for name in SETTINGS[module])
    fields = [each for each in struct.body if isinstance(each, ast.AnnAssign)]
    body = [
        f"    {ast.unparse(each.target)}: {ast.get_source_segment(text, each.annotation)}"
        for each in fields
    ]
    lines = text.splitlines()
    lines[settings.body[0].end_lineno : settings.end_lineno] = ["", *body]  # after the docstring
    return "\n".join(lines) + "\n"


def settings_path(module: str) -> Path:
    return PACKAGE / f"{module}.py"


def path_of(surface: Surface) -> Path:
    return PACKAGE / f"{surface.name}.py"


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    for surface in (BLOCKING, AIO):
        path_of(surface).write_text(generated(surface))
    for module in SETTINGS:
        settings_path(module).write_text(with_settings(module))


if __name__ == "__main__":
    main()
