"""Collects what is wrong while a job is read, so that it is told all at once."""

from dataclasses import dataclass, field

from recycle_compiler.diagnostics import CompileError, Diagnostic, Span

_MOST = 50
"""Nobody reads more mistakes at once, and a hostile file could have a million."""


@dataclass(slots=True)
class Report:
    """The mistakes found in one file so far."""

    source: str
    file_name: str
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def error(
        self, code: str, message: str, span: Span | None, hint: str | None = None, no_plan: bool = False
    ) -> None:
        """Note one mistake; raises when there are too many to go on."""
        self.diagnostics.append(Diagnostic(code, message, span, hint, no_plan))
        if len(self.diagnostics) >= _MOST:
            self.raise_if_any()

    def raise_if_any(self) -> None:
        """Raise everything that was noted, in the order of the file; do nothing when it is fine."""
        if not self.diagnostics:
            return
        in_order = sorted(self.diagnostics, key=lambda one: one.span or Span(0, 0, 0))
        if len(in_order) >= _MOST:
            message = f"stopped after {len(in_order)} errors"
            in_order.append(Diagnostic("too-many-errors", message, None, "mend the ones above first"))
        raise CompileError(in_order, self.source, self.file_name)
