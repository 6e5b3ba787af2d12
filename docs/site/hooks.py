"""What the site has beyond the pages in docs/: the reference, and files of the tree that pages link to.

Loaded by mkdocs. The pages of the reference are written from the parsers, the grammar, the schema and the
instruction set themselves, so that they cannot say anything else.
"""

import re
from pathlib import Path
from posixpath import normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from recycle_compiler.cli.main import command_line as recyclec
from recycle_compiler.frontend import schema
from recycle_runtime.cli.description import Command, OptionDescription, described
from recycle_runtime.cli.main import command_line as recycle_run
from recycle_runtime.cli.parser import CommandLine
from recycle_runtime.plan import isa

ROOT = Path(__file__).resolve().parents[2]
_OUTSIDE = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {
        "reference/recyclec.md": _commands(recyclec()),
        "reference/recycle-run.md": _commands(recycle_run()),
        "reference/job-settings.md": _job_settings(),
        "reference/instructions.md": _instructions(),
        "reference/python-compiler.md": "# Python: the compiler\n\n::: recycle_compiler.library\n",
        "reference/python-runtime.md": _runtime_names(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for name in sorted(_linked()):
        files.append(File.generated(config, f"files/{name}.txt", content=(ROOT / name).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **rest: Any) -> str:
    """Links to files of the tree lead to copies of them in the site."""
    if "/" in page.file.src_uri:
        return markdown

    def moved(link: re.Match[str]) -> str:
        return f"](files/{normpath(link[1]).removeprefix('../')}.txt)"

    return _OUTSIDE.sub(moved, markdown)


def _linked() -> set[str]:
    """Files of the tree that some page links to."""
    return {
        normpath(link[1]).removeprefix("../")
        for page in (ROOT / "docs").glob("*.md")
        for link in _OUTSIDE.finditer(page.read_text("utf-8"))
    }


def _commands(program: CommandLine) -> str:
    own, *others = described(program)
    shared = {option.names for option in own.named}
    lines = [f"# `{program.name}`", "", program.description, ""]
    lines += ["Options of every command, before or after it:", "", *_rows(own.named)]
    for command in others:
        lines += ["", f"## `{program.name} {command.name}`", "", f"{_sentence(command.does)}", ""]
        lines += ["```text", _usage(program.name, command), "```", ""]
        lines += _rows([option for option in command.options if option.names not in shared])
    return "\n".join((*lines, ""))


def _usage(program: str, command: Command) -> str:
    alone = " ".join(option.value for option in command.alone)
    return f"{program} {command.name} {alone} [OPTIONS]".replace("  ", " ")


def _rows(options: list[OptionDescription] | tuple[OptionDescription, ...]) -> list[str]:
    if not options:
        return []
    rows = [f"| {_written(option)} | {_cell(_sentence(option.does))} |" for option in options]
    return ["| option | does |", "|---|---|", *rows]


def _written(option: OptionDescription) -> str:
    names = ", ".join(option.names)
    return f"<code>{_cell(f'{names} {option.value}'.strip())}</code>"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "." if text else ""


def _cell(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "&#124;")


def _job_settings() -> str:
    lines = ["# Settings of a job", "", "What [the job language](../job-language.md) takes, by block.", ""]
    for block, settings in schema.BLOCKS.items():
        required = set(schema.REQUIRED_SETTINGS.get(block, ()))
        lines += [f"## `{block}`", "", f"    {schema.EXAMPLES[block]}", ""]
        lines += [
            "The block is required." if block in schema.REQUIRED_BLOCKS else "The block may be left out.",
            "",
        ]
        if switches := schema.SWITCHES.get(block):
            lines += [f"Switches: {', '.join(f'`{switch}`' for switch in switches)}.", ""]
        if settings:
            lines += ["| setting | required | meaning |", "|---|---|---|"]
            lines += [
                f"| `{key}` | {_required(block, key, required)} | {_meaning(key)} |" for key in settings
            ]
            lines.append("")
    lines += [
        "## Units",
        "",
        f"Times: {_listed(schema.TIME_UNITS)}. Memory: {_listed(schema.MEMORY_UNITS)}. Shares: `%`.",
        "",
    ]
    grammar = (ROOT / "grammar" / "job.lark").read_text("utf-8")
    return "\n".join((*lines, "## Grammar", "", "```text", grammar.rstrip(), "```", ""))


def _required(block: str, key: str, required: set[str]) -> str:
    if key not in required:
        return ""
    other = schema.IN_PLACE_OF_REQUIRED.get(block)
    return f"yes, or `{other}`" if other else "yes"


def _meaning(key: str) -> str:
    return (
        _cell(schema.MEANINGS.get(key, "").removeprefix(f"`{key}` is "))
        or "per stage or layer; see the job language"
    )


def _listed(words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _instructions() -> str:
    """From the comments below the names, which Python does not keep."""
    source = Path(str(isa.__file__)).read_text("utf-8")
    found = dict(re.findall(r'^    ([A-Z_]+) = \d+\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL))
    fields = {
        "micro-batch": isa.USES_MICROBATCH,
        "chunk": isa.USES_CHUNK,
        "buffer": isa.USES_BUFFER,
        "neighbour": isa.USES_NEIGHBOUR,
        "inbox": isa.RECEIVES | isa.CONSUMES,
    }
    lines = ["# Instructions", "", (isa.__doc__ or "").strip(), ""]
    lines += ["| number | opcode | does | fields |", "|---:|---|---|---|"]
    for opcode in isa.Opcode:
        uses = ", ".join(field for field, users in fields.items() if opcode in users)
        lines.append(f"| {opcode.value} | `{opcode.name}` | {found[opcode.name]} | {uses} |")
    return "\n".join((*lines, ""))


def _runtime_names() -> str:
    from recycle_runtime import _PUBLIC

    lines = ["# Python: the runtime", "", "`import recycle_runtime as recycle`", ""]
    return "\n".join((*lines, *(f"::: {module}.{name}\n" for name, module in _PUBLIC.items())))
