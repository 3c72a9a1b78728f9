from __future__ import annotations

import gc
import weakref

from adjoint.runtime.code import NativeFunction


class Engine:
    pass


def test_functions_hold_their_code_and_tables_may_hold_functions_weakly() -> None:
    engine = Engine()
    alive = weakref.ref(engine)
    one, other = NativeFunction(16, engine), NativeFunction(32, engine)
    table = weakref.WeakValueDictionary({"one": one, "other": other})
    del engine, one
    gc.collect()
    assert list(table) == ["other"]
    assert alive() is not None
    del other
    gc.collect()
    assert not table
    assert alive() is None
