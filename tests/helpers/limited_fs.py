"""Runs a command with a file system that has no locks, no chmod and cannot sync folders.

    unshare --user --map-root-user --mount python -m helpers.limited_fs FOLDER COMMAND...

The file system is mounted on FOLDER. It is in memory, uses the kernel's FUSE interface (`linux/fuse.h`)
without a library, and fails as some network file systems do: ENOSYS for `flock`, EINVAL for `fsync` of a
folder, EPERM for `chmod`. Everything else works. It vanishes when the command ends.
"""

import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_WRITE = 2**17
SIZE_CHANGES, MODE_CHANGES = 1 << 3, 1 << 0
FORWARD_FLOCK = 1 << 10


@dataclass
class Node:
    """A file or a folder."""

    mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[bytes, int] = field(default_factory=dict)


class LimitedFiles:
    """Answers the kernel's requests one after the other."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.nodes = {1: Node(stat.S_IFDIR | 0o755)}
        self.answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: self.lookup, 3: self.get_attributes, 4: self.set_attributes, 9: self.make_folder,
            10: self.remove, 11: self.remove, 12: self.rename, 14: self.open, 15: self.read, 16: self.write,
            17: self.statistics, 18: self.nothing, 20: self.nothing, 25: self.nothing, 26: self.begin,
            27: self.open, 28: self.list, 29: self.nothing, 30: self.sync_folder, 35: self.create,
            45: self.rename_with_flags,
        }  # fmt: skip

    def serve(self) -> None:
        """Answer until the file system is unmounted."""
        while True:
            try:
                request = os.read(self.device, MAX_WRITE + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                raise
            _, operation, unique, node = struct.unpack_from("<IIQQ", request)
            if operation in (2, 36, 42):  # FORGET and INTERRUPT need no answer
                continue
            code, answer = 0, b""
            try:
                if operation not in self.answers:  # locks among them
                    raise OSError(errno.ENOSYS, "")
                answer = self.answers[operation](node, request[40:])
            except OSError as error:
                code = -(error.errno or errno.EIO)
            os.write(self.device, struct.pack("<IiQ", 16 + len(answer), code, unique) + answer)

    def begin(self, node: int, body: bytes) -> bytes:  # noqa: ARG002
        major, minor, read_ahead, _ = struct.unpack_from("<IIII", body)
        limits = struct.pack("<HHIIHHI28x", 0, 0, MAX_WRITE, 1, 0, 0, 0)
        return struct.pack("<IIII", major, min(minor, 31), read_ahead, FORWARD_FLOCK) + limits

    def nothing(self, node: int, body: bytes) -> bytes:  # noqa: ARG002
        return b""

    def sync_folder(self, node: int, body: bytes) -> bytes:  # noqa: ARG002
        raise OSError(errno.EINVAL, "")

    def statistics(self, node: int, body: bytes) -> bytes:  # noqa: ARG002
        return struct.pack("<QQQQQIIII24x", 2**20, 2**19, 2**19, 2**20, 2**19, 4096, 255, 4096, 0)

    def attributes(self, number: int) -> bytes:
        node = self.nodes[number]
        size = len(node.data)
        return struct.pack(
            "<QQQQQQIIIIIIIIII",
            number,
            size,
            -(-size // 512),
            0,
            0,
            0,
            0,
            0,
            0,
            node.mode,
            1,
            0,
            0,
            0,
            4096,
            0,
        )

    def entry(self, number: int) -> bytes:
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self.attributes(number)

    def lookup(self, node: int, body: bytes) -> bytes:
        return self.entry(self.child(node, body.rstrip(b"\0")))

    def child(self, node: int, name: bytes) -> int:
        if name not in self.nodes[node].names:
            raise OSError(errno.ENOENT, "")
        return self.nodes[node].names[name]

    def get_attributes(self, node: int, body: bytes) -> bytes:  # noqa: ARG002
        return struct.pack("<QII", 0, 0, 0) + self.attributes(node)

    def set_attributes(self, node: int, body: bytes) -> bytes:
        changes, _, _, size = struct.unpack_from("<IIQQ", body)
        if changes & MODE_CHANGES:
            raise OSError(errno.EPERM, "")
        if changes & SIZE_CHANGES:
            data = self.nodes[node].data
            del data[size:]
            data.extend(bytes(size - len(data)))
        return self.get_attributes(node, body)

    def add(self, folder: int, name: bytes, mode: int) -> int:
        number = max(self.nodes) + 1
        self.nodes[number] = Node(mode)
        self.nodes[folder].names[name] = number
        return number

    def make_folder(self, node: int, body: bytes) -> bytes:
        (mode,) = struct.unpack_from("<I", body)
        return self.entry(self.add(node, body[8:].rstrip(b"\0"), stat.S_IFDIR | mode))

    def create(self, node: int, body: bytes) -> bytes:
        _, mode = struct.unpack_from("<II", body)
        return self.entry(self.add(node, body[16:].rstrip(b"\0"), stat.S_IFREG | mode)) + self.open(
            node, body
        )

    def open(self, node: int, body: bytes) -> bytes:  # noqa: ARG002
        return struct.pack("<QII", 0, 0, 0)

    def read(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(self.nodes[node].data[offset : offset + size])

    def write(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        data = self.nodes[node].data
        data.extend(bytes(max(0, offset - len(data))))
        data[offset : offset + size] = body[40 : 40 + size]
        return struct.pack("<II", size, 0)

    def list(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        listed = b""
        for place, (name, number) in enumerate(self.nodes[node].names.items()):
            kind = self.nodes[number].mode >> 12
            item = struct.pack("<QQII", number, place + 1, len(name), kind) + name
            item += bytes(-len(item) % 8)
            if place >= offset:
                if len(listed) + len(item) > size:
                    break
                listed += item
        return listed

    def remove(self, node: int, body: bytes) -> bytes:
        del self.nodes[node].names[body.rstrip(b"\0")]
        return b""

    def rename(self, node: int, body: bytes, head: int = 8) -> bytes:
        (target,) = struct.unpack_from("<Q", body)
        old, new, _ = body[head:].split(b"\0", 2)
        self.nodes[target].names[new] = self.child(node, old)
        del self.nodes[node].names[old]
        return b""

    def rename_with_flags(self, node: int, body: bytes) -> bytes:
        return self.rename(node, body, head=16)


def mount(folder: str) -> int:
    """Mount the file system and return the descriptor that the kernel's requests come from."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"limited", os.fsencode(folder), b"fuse.limited", 0, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return device


if __name__ == "__main__":
    files = LimitedFiles(mount(sys.argv[1]))
    threading.Thread(target=files.serve, daemon=True).start()
    sys.exit(subprocess.run(sys.argv[2:], check=False).returncode)
