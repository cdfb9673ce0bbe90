"""Memory of CPU tensors: keep what is freed, instead of giving it back to the system after every step.

glibc maps every buffer above 32 MB afresh and returns freed memory at the top of its heap; the system then clears
each page again at its next use. At 16,384 tokens of 8 heads x 64 that was half the time of DiagAttention, and it made
linear attentions look superlinear. GPU memory has its own caching allocator and is not touched.
"""

from __future__ import annotations

import ctypes
import platform

# Names and numbers of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell glibc to hold on to freed memory for the rest of this process; False where the C library is another one."""
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_M_TRIM_THRESHOLD, _NEVER) and libc.mallopt(_M_MMAP_MAX, 0))
