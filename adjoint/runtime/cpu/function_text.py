"""The text of a native function in LLVM IR, appended instruction by instruction."""

from __future__ import annotations


class FunctionText:
    """One function.  Variables are memory: LLVM makes them registers."""

    def __init__(self, head: str) -> None:
        """`head`: the type of the result, the name and the parameters."""
        self._head = f"define internal {head} {{"
        self._variables: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def text(self) -> str:
        return "\n".join([self._head, "entry:", *self._variables, *self._lines, "}\n"])

    def unique(self, prefix: str) -> str:
        """A name that nothing else in the function has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def do(self, text: str) -> str:
        """The value of an instruction."""
        name = f"%{self.unique('v')}"
        self.line(f"{name} = {text}")
        return name

    def allocated(self, kind: str, prefix: str) -> str:
        """The address of a new variable."""
        name = f"%{self.unique(prefix)}"
        self._variables.append(f"  {name} = alloca {kind}")
        return name

    def label(self, name: str) -> None:
        self._lines.append(f"{name}:")

    def go(self, text: str) -> None:
        """Branch."""
        self.line(f"br {text}")
