"""Fill in the templates beside this module. What the user wrote is quoted for whoever reads it."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from recycle_compiler.launch.layout import NodeLayout

TEMPLATES = {"slurm": "slurm.sh.j2", "kubernetes": "kubernetes.yaml.j2", "jobset": "jobset.yaml.j2"}


@dataclass(frozen=True, slots=True)
class Launch:
    """A job as it is started. Paths are those that the nodes see."""

    name: str
    plan: str
    program: str | None
    script: tuple[str, ...]
    """With its arguments, in place of a program."""
    steps: int | None
    device: str
    layout: NodeLayout
    checkpoint: str | None = None
    image: str = ""
    tls: bool = False
    neighbour_copies: int = 0
    """Steps from one copy of every stage in memory to the next; 0: none are made."""


def render_launch(system: str, launch: Launch) -> str:
    """The file for this system; the same job gives the same text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(sh=_shell_word, yaml=_yaml_text, argument=_container_argument, path=_path)
    return environment.get_template(TEMPLATES[system]).render(job=launch, layout=launch.layout)


def _path(name: str) -> str:
    """A file name that no command takes for an option."""
    return f"./{name}" if name.startswith("-") else name


def _shell_word(value: object) -> str:
    return shlex.quote(str(value))


def _yaml_text(value: object) -> str:
    """A JSON string is a YAML string as long as every character can be printed, which is checked before."""
    return json.dumps(str(value), ensure_ascii=False)


def _container_argument(value: object) -> str:
    """Kubernetes puts variables in the place of $(NAME); a doubled dollar stands for itself."""
    return _yaml_text(str(value).replace("$", "$$"))
