"""`python -m adjoint`, and the command `adjoint`."""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Run one command.

    The atlas of a tree starts without torch, whose import takes seconds; what is exported is
    inspected without LLVM, which need not be there.
    """
    if sys.argv[1:2] == ["atlas"]:
        from adjoint.atlas import command

        # Facts live until the process ends; collecting garbage among them would take half of the
        # run.
        gc.disable()
        status = command.main(sys.argv[2:])
        gc.freeze()  # Otherwise the interpreter collects garbage once more at exit.
        return status
    if sys.argv[1:2] == ["inspect"]:
        from adjoint.exported import command as inspect

        return inspect.main(sys.argv[2:])
    from adjoint import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
