"""Machine code of ARM in this process: an object file is linked here, and executed by the emulator unicorn (QEMU's).

The emulator sees this process's memory at its own addresses, so that compiled code is called as on an ARM: with
pointers to numpy arrays. It knows NEON and the dot product, not i8mm.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from onward.kernels.code import Functions, link
from onward.kernels.targets import FORMS, Target, host, host_features

ARM_FORMS = ("neon", "neon-dot")
STACK_BYTES = 1 << 20
_PAGE = mmap.PAGESIZE

_COPY = (0xAA0003E3, 0xB40000A2, 0x38401424, 0x38001464, 0xF1000442, 0x54FFFFA1, 0xD65F03C0)
_FILL = (0xAA0003E3, 0xB4000082, 0x38001461, 0xF1000442, 0x54FFFFC1, 0xD65F03C0)
LIBRARY = {"memcpy": _COPY, "memset": _FILL}
"""What objects may call, as loops over bytes."""


class Image:
    """An ELF object of AArch64 in memory, at a fixed address, with its relocations applied."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        (at,) = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        self._sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + size * i) for i in range(count)]
        length = sum(section[5] + 64 for section in self._sections) + 4096
        self._memory = mmap.mmap(-1, length)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._used = 64  # nothing lies at the address itself
        self._places = [self._load(section) for section in self._sections]
        self._library = {name: self._append(struct.pack(f"<{len(w)}I", *w)) for name, w in LIBRARY.items()}
        self.symbols: dict[str, int] = {}
        table = next(section for section in self._sections if section[1] == 2)
        self._symbols = [self._symbol(table, i) for i in range(table[5] // 24)]
        for section in self._sections:
            if section[1] == 4:
                for i in range(section[5] // 24):
                    self._relocate(section, i)

    def _append(self, content: bytes) -> int:
        start = -(-self._used // 64) * 64
        self._memory[start : start + len(content)] = content
        self._used = start + len(content)
        return self.address + start

    def _load(self, section: tuple[int, ...]) -> int:
        is_loaded = section[2] & 2 and section[1] == 1
        return self._append(self._data[section[4] : section[4] + section[5]]) if is_loaded else 0

    def _symbol(self, table: tuple[int, ...], index: int) -> int:
        name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", self._data, table[4] + 24 * index)
        start = self._sections[table[6]][4] + name
        text = self._data[start : self._data.index(b"\0", start)].decode()
        if section == 0:
            return self._library.get(text, 0)
        place = self._places[section] + value if section < len(self._places) else value
        if text:
            self.symbols[text] = place
        return int(place)

    def _relocate(self, section: tuple[int, ...], index: int) -> None:
        offset, info, addend = struct.unpack_from("<QQq", self._data, section[4] + 24 * index)
        place = self._places[section[7]] + offset
        target = self._symbols[info >> 32] + addend
        assert self._symbols[info >> 32], "a symbol that no test library has"
        at = place - self.address
        (word,) = struct.unpack_from("<I", self._memory, at)
        kind = info & 0xFFFFFFFF
        if kind in (282, 283):  # JUMP26, CALL26
            word |= (target - place) >> 2 & 0x3FFFFFF
        elif kind == 275:  # ADR_PREL_PG_HI21
            pages = (target >> 12) - (place >> 12)
            word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
        else:  # ADD_ABS_LO12_NC and LDST8 to LDST128
            shift = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}[kind]
            word |= (target & 0xFFF) >> shift << 10
        struct.pack_into("<I", self._memory, at, word)


class EmulatedCode:
    """`kernels.code.Code` for ARM."""

    was_compiled, remark = True, ""

    def __init__(self, objects: Iterable[bytes]) -> None:
        import unicorn
        from unicorn import arm64_const as arm

        self._arm, self._images = arm, [Image(data) for data in objects]
        self._symbols = {name: place for image in self._images for name, place in image.symbols.items()}
        self._end = self._images[0].address
        """Where nothing is executed: functions return there."""
        self._stack = mmap.mmap(-1, STACK_BYTES)
        self._machine: Any = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self._machine.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
        self._machine.reg_write(arm.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # floating point is allowed
        self._machine.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, self._map)
        self._everything, self._readable = unicorn.UC_PROT_ALL, unicorn.UC_PROT_READ
        self._mapped: list[tuple[int, int]] = []
        self._lock = Lock()

    def address(self, name: str) -> int:
        """Return where an exported function is. Raises KeyError if there is none of this name."""
        return self._symbols[name]

    def function(self, name: str, parameters: Sequence[Any], returns: Any = None) -> Callable[..., Any]:
        """Return an exported function. Raises KeyError if there is none of this name."""
        address = self.address(name)
        return lambda *arguments: self._call(address, parameters, returns, arguments)

    def _call(self, address: int, parameters: Sequence[Any], returns: Any, arguments: Sequence[Any]) -> Any:
        with self._lock:
            return self._execute(address, parameters, returns, arguments)

    def _execute(self, address: int, parameters: Sequence[Any], returns: Any, arguments: Sequence[Any]) -> Any:
        arm, machine = self._arm, self._machine
        integers, num_floats = [], 0
        for kind, value in zip(parameters, arguments, strict=True):
            if kind in (ctypes.c_float, ctypes.c_double):
                bits = int.from_bytes(bytes(kind(value)), "little")
                machine.reg_write(arm.UC_ARM64_REG_D0 + num_floats, bits)
                num_floats += 1
            else:
                integers.append(value if isinstance(value, int) else 0 if value is None else ctypes.addressof(value))
        top = ctypes.addressof(ctypes.c_char.from_buffer(self._stack)) + STACK_BYTES - 4096
        for i, value in enumerate(integers):
            if i < 8:
                machine.reg_write(arm.UC_ARM64_REG_X0 + i, value & (2**64 - 1))
            else:
                struct.pack_into("<Q", self._stack, STACK_BYTES - 4096 + 8 * (i - 8), value & (2**64 - 1))
        machine.reg_write(arm.UC_ARM64_REG_SP, top)
        machine.reg_write(arm.UC_ARM64_REG_X30, self._end)
        machine.emu_start(address, self._end)
        if returns is None:
            return None
        is_float = returns in (ctypes.c_float, ctypes.c_double)
        bits = machine.reg_read(arm.UC_ARM64_REG_D0 if is_float else arm.UC_ARM64_REG_X0)
        return returns.from_buffer_copy(bits.to_bytes(8, "little")).value

    def _map(self, machine: Any, access: int, address: int, size: int, value: int, data: Any) -> bool:
        """Map the region of this process's memory that an address is in, as far as it is not mapped yet."""
        start, end, is_writable = _region_of(address)
        for mapped_start, mapped_end in self._mapped:
            if mapped_end <= address:
                start = max(start, mapped_end)
            elif mapped_start > address:
                end = min(end, mapped_start)
        if not start <= address < end:
            return False
        machine.mem_map_ptr(start, end - start, self._everything if is_writable else self._readable, start)
        self._mapped.append((start, end))
        return True


def _region_of(address: int) -> tuple[int, int, bool]:
    """Return the bounds of the region of this process that an address is in, and whether it can be written to; (0, 0)
    if it is in none."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        bounds, modes = line.split()[:2]
        start, end = (int(each, 16) for each in bounds.split("-"))
        if start <= address < end and modes.startswith("r"):
            return start, end, modes.startswith("rw")
    return 0, 0, False


def runnable_forms() -> dict[str, Target]:
    """Return the forms of the kernels that this processor runs."""
    features, architecture = host_features(), host().architecture
    return {name: target for name, target in FORMS.items() if target.runs_on(architecture, features)}


def executable_forms() -> dict[str, Target]:
    """Return the forms of the kernels that this processor runs, and those that are emulated: ARM's, with unicorn."""
    can_emulate = sys.platform == "linux" and host().architecture == "x86_64" and find_spec("unicorn") is not None
    return runnable_forms() | ({name: FORMS[name] for name in ARM_FORMS} if can_emulate else {})


def linked(objects: Iterable[bytes], target: Target) -> Functions:
    """Return the code of objects, to be called here."""
    return link(objects, target) if target.architecture == host().architecture else EmulatedCode(objects)
