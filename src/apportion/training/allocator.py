"""The C library's allocator: freed memory stays with the process while it trains.

glibc gives each large block back to the system as soon as it is freed and asks for it again in the
next step, page by page: about a tenth of the time of a training step on a processor.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache

LEFT_ALONE = "APPORTION_NO_MALLOPT"  # a variable of the environment: the allocator stays as it is
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGE = 1 << 30


@cache
def keep_freed_memory() -> bool:
    """Whether the process now keeps freed blocks of up to 1 GiB; what it computes stays the same.

    Only glibc on Linux is asked to. Elsewhere, and with APPORTION_NO_MALLOPT=1 in the environment,
    nothing happens.
    """
    if os.environ.get(LEFT_ALONE) or sys.platform != "linux":
        return False
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_TRIM_THRESHOLD, _LARGE))
