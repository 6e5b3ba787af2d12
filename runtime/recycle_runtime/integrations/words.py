"""Command lines of coordinator and agents.

The options are those of `recycle-run node`, with underscores, and its parser checks them: the options of
a job are written down once.
"""

import io
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path

from recycle_runtime.cli.commands.node import agent_words, coordinator_words
from recycle_runtime.cli.main import parse_arguments
from recycle_runtime.cli.options.run import read_options
from recycle_runtime.cli.options.script import script_or_program
from recycle_runtime.cli.output import UserError
from recycle_runtime.files import sentence
from recycle_runtime.options.option import options_of
from recycle_runtime.options.run import NODE, RunOptions
from recycle_runtime.plan.bundle import Bundle, BundleError
from recycle_runtime.protocol.access import Access

_NOT_HERE = ("port", "nodes")


class JobError(RuntimeError):
    """The job cannot begin, or has not ended well, in one sentence."""


class JobWords:
    """Command lines for a job on so many nodes."""

    def __init__(
        self,
        plan: str,
        script: Sequence[str],
        options: Mapping[str, object],
        nodes: int | None = None,
        more: Sequence[str] = (),
    ) -> None:
        """`more` are options as they stand on a command line. JobError if the job makes no sense."""
        arguments = _parse([plan, *_words(options), *more, *script])
        try:
            script_or_program(arguments)
            self._options = read_options(arguments)
            bundle = Bundle.read(plan)
        except (UserError, BundleError) as error:
            raise JobError(f"{plan}: {error}" if isinstance(error, BundleError) else str(error)) from None
        except OSError as error:
            raise JobError(sentence(error)) from None
        self.workers_per_node = self._options.workers_per_node
        self.device = self._options.device
        self.node_state: str | None = arguments.node_state
        self.has_token_file = self._options.token_file is not None
        self._quiet: bool = arguments.quiet
        self.nodes = _nodes(bundle, self.workers_per_node, nodes)

    def access(self, token: str) -> Access:
        """With this token, unless one stands in a file; TokenFileError if that is not as it should be."""
        return Access(token, self._options.token_file, tls=self._options.tls)

    def coordinator(self, host: str | None) -> list[str]:
        """Of one that others reach at this host, but for where it listens."""
        return coordinator_words(self._options, host, self.nodes, quiet=self._quiet)

    def agent(self, state: str) -> list[str]:
        """Of one with this folder, but for where the coordinator is."""
        return agent_words(self._options, state)


def _words(options: Mapping[str, object]) -> list[str]:
    words: list[str] = []
    paths = {option.name for _, option in options_of(RunOptions, NODE) if option.is_shared_path}
    for name, value in options.items():
        if name in _NOT_HERE:
            raise JobError(f"{name} is no option here")
        option = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if name in paths:
            value = Path(str(value)).absolute()
        words.append(option if value is True else f"{option}={value}")
    return words


def _parse(words: list[str]) -> Namespace:
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return parse_arguments(["node", *words])
    except SystemExit:
        *_, last = said.getvalue().strip().splitlines()
        raise JobError(last.removeprefix("recycle-run node: error: ")) from None


def _nodes(bundle: Bundle, workers_per_node: int, asked: int | None) -> int:
    """As many as are asked for, else as few as will do."""
    if workers_per_node < bundle.tensor:
        raise JobError(
            f"workers_per_node {workers_per_node} is too few: the {bundle.tensor} tensor-parallel ranks of a "
            "worker share a node"
        )
    needed = -(-bundle.present // (workers_per_node // bundle.tensor))
    if asked is not None and asked < needed:
        raise JobError(
            f"nodes {asked} with workers_per_node {workers_per_node} is too few: the job takes {needed} such "
            "nodes"
        )
    return needed if asked is None else asked
