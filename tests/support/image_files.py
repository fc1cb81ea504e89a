"""Image files with what cameras and phones write into them."""

from __future__ import annotations

import struct
import zlib


def with_orientation(data: bytes, orientation: int) -> bytes:
    """PNG or JPEG bytes with an EXIF orientation (1 to 8) for viewers; the pixels stay as they are."""
    tiff = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    if data.startswith(b"\xff\xd8"):
        segment = b"Exif\0\0" + tiff
        return data[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + data[2:]
    header_end = 8 + 12 + struct.unpack(">I", data[8:12])[0]
    chunk = b"eXIf" + tiff
    return (
        data[:header_end]
        + struct.pack(">I", len(tiff))
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + data[header_end:]
    )
