"""CRC-32 (IEEE 802.3, the polynomial of zlib), by the fastest library at hand."""

from __future__ import annotations

from isal import isal_zlib

# isal's is the same function as zlib.crc32 at three times the speed for small inputs (data_plane measurements).
crc32 = isal_zlib.crc32
