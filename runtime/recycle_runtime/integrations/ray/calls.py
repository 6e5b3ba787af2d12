"""The few calls of Ray that are made; nothing else imports it."""

from collections.abc import Mapping
from typing import Any, Protocol


class RayMissingError(ImportError):
    """Ray is not installed, in one sentence."""


class AwayError(Exception):
    """An actor cannot be reached now, and may be later."""


class DeadError(Exception):
    """An actor is gone for good, with Ray's first line on why."""


class Calls(Protocol):
    """Calls of the driver to Ray. Actors and answers to come are opaque."""

    def create(self, made: type, options: Mapping[str, Any], *arguments: object) -> Any:
        """An actor, which Ray places as soon as there is room."""
        ...

    def ask(self, actor: Any, method: str, *arguments: object) -> Any:
        """An answer to come."""
        ...

    def is_there(self, answer: Any) -> bool: ...

    def value(self, answer: Any) -> Any:
        """Of one that is there; AwayError or DeadError if the actor could not give it."""
        ...

    def kill(self, actor: Any) -> None:
        """At once, with the processes that hold on to it."""
        ...


class RayCalls:
    """The real ones; RayMissingError without Ray."""

    def __init__(self) -> None:
        self._ray = _ray()

    def create(self, made: type, options: Mapping[str, Any], *arguments: object) -> Any:
        return self._ray.remote(made).options(**options).remote(*arguments)

    def ask(self, actor: Any, method: str, *arguments: object) -> Any:
        return getattr(actor, method).remote(*arguments)

    def is_there(self, answer: Any) -> bool:
        ready, _ = self._ray.wait([answer], timeout=0)
        return bool(ready)

    def value(self, answer: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(answer)
        except errors.ActorUnavailableError as error:
            raise AwayError(_first_line(error)) from None
        except errors.RayActorError as error:
            raise DeadError(_first_line(error)) from None

    def kill(self, actor: Any) -> None:
        self._ray.kill(actor)


def own_address() -> str:
    """By which other nodes of the Ray cluster reach this one."""
    return str(_ray().util.get_node_ip_address())


def _ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise RayMissingError("Ray is not installed: pip install 'recyclec[ray]'") from None
    return ray


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
