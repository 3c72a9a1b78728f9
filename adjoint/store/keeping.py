"""The store of a compilation: reads entries, and writes them in the background.

A failure is reported once for each folder and kind of failure, and then compilation goes on without
the entry.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol, TypeVar

from adjoint.errors import CacheWarning
from adjoint.garbage import full_collections_wait
from adjoint.store.claims import Claim
from adjoint.store.entries import DamagedEntry, Entry, Facts, Header
from adjoint.store.folder import Folder, NotTrusted
from adjoint.store.place import default_folder

Value = TypeVar("Value")


# Entries that wait to be written.  If the disk is slower than compilation, further entries are
# dropped: each that waits keeps the objects it is made of in memory, and the interpreter waits for
# all of them at exit.
MAX_PENDING_WRITES = 32


class Payload(Protocol):
    def __call__(self) -> bytes | None:
        """The bytes of the entry; None: it cannot be cached."""
        ...


class Store:
    """The entries of one folder, for one process."""

    def __init__(self, path: Path, limit: int) -> None:
        self.folder = Folder(path, limit)
        self.hits = 0
        self.misses = 0
        self._told: set[type[Exception]] = set()
        self._can_write = True
        self._pending: list[Future[None]] = []

    def get(self, kind: str, facts: Facts) -> bytes | None:
        """The payload of the entry with these facts, if there is one."""
        found: Entry | None = None
        try:
            found = self.folder.read(kind, facts)
        except NotTrusted as error:
            self._tell(error, f"is not used: {error}")
        except DamagedEntry as error:
            self.reject(kind, facts, error)
        except OSError as error:
            self._tell(error, f"cannot be read: {error}")
        self.hits += found is not None
        self.misses += found is None
        return None if found is None else found.payload

    def reject(self, kind: str, facts: Facts, error: Exception) -> None:
        """Remove an entry that turned out to be damaged."""
        self._tell(error, f"has a damaged entry, which is made again: {error}")
        with contextlib.suppress(OSError):
            self.folder.remove(kind, facts)

    def fail(self, error: Exception) -> None:
        """Report a failure of ours: what is compiled is not cached."""
        self._tell(error, f"does not keep something: {type(error).__name__}: {error}")

    def put(
        self,
        kind: str,
        facts: Facts,
        payload: bytes | Payload,
        label: str = "",
        claim: Claim | None = None,
    ) -> None:
        """Write an entry in the background, unless `MAX_PENDING_WRITES` entries wait already.

        `claim`: released when the entry is written.
        """
        if not self._can_write:
            return
        write = functools.partial(self._write, Header(kind, facts, label), payload, claim)
        # The interpreter is about to exit and takes no more work.
        with contextlib.suppress(RuntimeError):
            self._pending = [each for each in self._pending if not each.done()]
            if len(self._pending) < MAX_PENDING_WRITES:
                self._pending.append(_writer().submit(write))
                if claim is not None:
                    claim.is_passed_on = True

    def found_or_made(
        self,
        kind: str,
        facts: Facts,
        find: Callable[[], Value | None],
        make: Callable[[Claim], Value],
    ) -> Value:
        """What `find` finds, or else what `make` makes, in one process at a time.

        `make` is given a claim for `put`.
        """
        found = find()
        if found is not None:
            return found
        claim = self.folder.claim(kind, facts) if self._can_write else Claim(None)
        if claim is None:
            # Another process has made it; what cannot be read is made again, claimed or not.
            found = find()
            if found is not None:
                return found
            claim = Claim(None)
        try:
            return make(claim)
        finally:
            if not claim.is_passed_on:
                claim.release()

    def flush(self) -> None:
        """Wait until everything is written."""
        for each in list(self._pending):
            each.result()

    def _write(self, header: Header, payload: bytes | Payload, claim: Claim | None) -> None:
        try:
            if self._can_write:
                with full_collections_wait():
                    self._write_now(header, payload)
        finally:
            if claim is not None:
                claim.release()

    def _write_now(self, header: Header, payload: bytes | Payload) -> None:
        try:
            data = payload if isinstance(payload, bytes) else payload()
            if data is not None:
                self.folder.write(Entry(header, data))
        except (OSError, NotTrusted) as error:
            self._can_write = False
            self._tell(error, f"cannot be written: {error}")
        except Exception as error:  # noqa: BLE001 - told; the compilation is complete
            self.fail(error)

    def _tell(self, error: Exception, what: str) -> None:
        if type(error) in self._told:
            return
        self._told.add(type(error))
        message = f"the cache {self.folder.path} {what}"
        # As an error, the warning would end a compilation, or the thread that writes.
        with contextlib.suppress(CacheWarning):
            warnings.warn(message, CacheWarning, stacklevel=2)


@functools.cache
def _writer() -> ThreadPoolExecutor:
    """One thread for all stores; at exit the interpreter waits for it."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="adjoint-store")


@functools.cache
def store_at(path: Path, limit: int) -> Store:
    """The store of a folder: one for each process."""
    return Store(path, limit)


def store_for(cache: str | bool, limit: int) -> Store | None:
    """The store that the option `cache` asks for; None: nothing is cached."""
    path = default_folder() if cache is True else Path(cache).expanduser() if cache else None
    return None if path is None else store_at(path, limit)


if hasattr(os, "register_at_fork"):
    # A forked process does not have the thread that writes.
    os.register_at_fork(after_in_child=_writer.cache_clear)
    os.register_at_fork(after_in_child=store_at.cache_clear)


# The store of the compilation that is going on; None: nothing is cached.
_CURRENT: ContextVar[Store | None] = ContextVar("_CURRENT", default=None)


def current_store() -> Store | None:
    """The store of the compilation that is going on."""
    return _CURRENT.get()


@contextlib.contextmanager
def keeping_in(store: Store | None) -> Iterator[None]:
    """What is compiled meanwhile is cached in `store`."""
    token = _CURRENT.set(store)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def kept_or_made(
    kind: str,
    facts: Facts | None,
    make: Callable[[], bytes],
    checked: Callable[[bytes], Value],
    unsound: type[Exception],
    label: str,
) -> Value:
    """The cached payload of these facts, or else what `make` returns, which is then cached.

    `facts` None: nothing is cached.  `checked` reads either, and raises `unsound` for what it
    cannot read.
    """
    store = current_store()
    if store is None or facts is None:
        return checked(make())

    def find() -> tuple[Value] | None:
        kept = store.get(kind, facts)
        if kept is not None:
            try:
                return (checked(kept),)
            except unsound as error:
                store.reject(kind, facts, error)
        return None

    def made(claim: Claim) -> tuple[Value]:
        data = make()
        found = (checked(data),)
        store.put(kind, facts, data, label, claim)
        return found

    return store.found_or_made(kind, facts, find, made)[0]
