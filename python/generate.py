"""Writes the two modules of the package that follow from the C library.

In:  the public headers, and the op table as `tenon ops --json` prints it.
Out: _abi.py (structs, enums and function types for ctypes) and _ops.py (a function and a method for each elementwise op).
The headers are regular C: declarations only, one `typedef` or `TN_API` at a time, so that these few patterns read them all;
what they do not understand is an error here, never a wrong binding.
"""

import re

SCALARS = {
    "void": "None", "int": "C.c_int", "double": "C.c_double", "size_t": "C.c_size_t", "char": "C.c_char",
    "int8_t": "C.c_int8", "uint8_t": "C.c_uint8", "int32_t": "C.c_int32", "uint32_t": "C.c_uint32", "int64_t": "C.c_int64",
    "uint64_t": "C.c_uint64",
}
HEADERS = ("tenon.h", "tenon_nn.h", "tenon_index.h", "tenon_linalg.h", "tenon_signal.h", "tenon_quant.h",
           "tenon_io.h", "tenon_onnx.h")


def declarations(text):
    """The text without comments and preprocessor lines."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", " ", text, flags=re.M)
    text = re.sub(r"static inline [^{;]*\{.*?\n\}", " ", text, flags=re.S)
    return re.sub(r"\s+", " ", text)


def macros(text):
    return {m[1]: int(m[2]) for m in re.finditer(r"^#define (TN_[A-Z_]+) (\d+)\b", text, flags=re.M)}


class Headers:
    def __init__(self, texts):
        self.constants, self.enums, self.structs, self.functions, self.opaque, self.callbacks = {}, set(), {}, {}, set(), set()
        for text in texts:
            self.constants.update(macros(text))
        for text in texts:
            self.read(declarations(text))

    def read(self, text):
        for body, name in re.findall(r"typedef enum \{([^}]*)\} (\w+);", text):
            self.enums.add(name)
            value = 0
            for item in filter(None, (s.strip() for s in body.split(","))):
                key, _, given = (s.strip() for s in item.partition("="))
                value = int(given) if given else value
                self.constants[key] = value
                value += 1
        self.opaque.update(re.findall(r"typedef struct \w+ (\w+);", text))
        self.callbacks.update(re.findall(r"typedef \w+ \(\*(\w+)\)\(", text))
        for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", text):
            self.structs[name] = [f for decl in re.split(r";", body) if decl.strip() for f in self.fields(decl.strip())]
        for result, name, params in re.findall(r"TN_API (?:TN_CHECK )?([\w ]+?[ *]+)(tn_\w+)\(([^;]*)\);", text):
            params = params.partition(", ...")[0]  # like printf: called with a format alone
            self.functions[name] = (self.type(result), [self.param(p) for p in self.split(params)])

    @staticmethod
    def split(params):
        """The parameters, at commas that stand in no brackets: those of a function pointer do."""
        return [] if params.strip() in ("", "void") else [p.strip() for p in re.split(r",(?![^()]*\))", params)]

    def type(self, text):
        """The ctypes name of a C type without a name: pointers are addresses, but for texts."""
        words = re.sub(r"\bstruct\b", " ", text).replace("*", " * ").split()
        stars, constant = words.count("*"), "const" in words
        base = [w for w in words if w not in ("*", "const")]
        if len(base) != 1:
            raise ValueError(f"not a type: {text!r}")
        if stars:
            return "C.c_char_p" if base == ["char"] and stars == 1 and constant else "C.c_void_p"
        if base[0] in SCALARS:
            return SCALARS[base[0]]
        if base[0] in self.enums:
            return "C.c_int"
        if base[0] in self.callbacks:
            return "C.c_void_p"
        if base[0] in self.structs:
            return base[0]
        raise ValueError(f"unknown type {text!r}")

    def param(self, text):
        if "(*" in text:
            return "C.c_void_p"
        text = re.sub(r"\b\w+(\[\w*\])?$", lambda m: "*" if m[1] else "", text) if re.search(r"[ *]\w+(\[\w*\])?$", text) else text
        return self.type(text)

    def fields(self, decl):
        """[(name, ctypes name)] of `const char *a, *b` or `int64_t kernel[3], stride[3]`."""
        pointer = re.match(r"[^(]*\(\*(\w+)\)\(", decl)
        if pointer:
            return [(pointer[1], "C.c_void_p")]
        first, *more = decl.split(",")
        head = re.match(r"((?:const )?\w+)\s*(.*)$", first)
        out = []
        for one in [head[2], *more]:
            m = re.match(r"\s*(\**)\s*(\w+)((?:\[\w+\])*)\s*$", one)
            if not m:
                raise ValueError(f"not a field: {decl!r}")
            t = self.type(head[1] + " " + m[1])
            for size in reversed(re.findall(r"\[(\w+)\]", m[3])):
                t = f"{t} * {self.constants.get(size) or int(size)}"
            out.append((m[2], t))
        return out


def abi(texts):
    """The source of _abi.py."""
    h = Headers(texts)
    out = ['"""The C interface for ctypes. Written by python/generate.py from include/tenon; not for editing."""', "", "import ctypes as C", ""]
    out += [f"{k} = {v}" for k, v in h.constants.items()]
    for name, fields in h.structs.items():
        out += ["", "", f"class {name}(C.Structure):", "    _fields_ = ["]
        out += [f'        ("{field}", {t}),' for field, t in fields] + ["    ]"]
    out += ["", "", "FUNCTIONS = {"]
    out += [f'    "{name}": ({result}, ({"".join(p + ", " for p in params)})),' for name, (result, params) in h.functions.items()]
    return "\n".join(out + ["}", ""])


# Methods that would hide something of a tensor, or of Python: operators and keywords have them.
NO_METHOD = {"not", "and", "or", "select"}
RENAMED = {"not": "logical_not", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "max": "maximum", "min": "minimum",
           "abs": "abs", "pow": "pow", "round": "round", "select": None}


def ops(table):
    """The source of _ops.py, from the rows of `tenon ops --json`."""
    out = ['"""A function and a method for each elementwise op. Written by python/generate.py from the op table; not for editing."""', "",
           "from __future__ import annotations", "", "from typing import TYPE_CHECKING, Any", "", "from . import _core", "",
           "if TYPE_CHECKING:", "    from ._core import ArrayLike, Tensor", ""]
    names, methods = [], []
    for row in table:
        name = RENAMED.get(row["name"], row["name"])
        if not row["kind"].startswith("elementwise") or not name:
            continue
        params = row["operands"]
        doc = [f'    """{row["doc"][0].upper() + row["doc"][1:]}.', "", f'    Dtypes: {row["dtypes"]}. Result: {row["result"]}.']
        doc += ["    Not differentiable." if "NOGRAD" in row["gradient"] else f'    Gradient: {row["gradient"]}.', '    """']
        names.append(name)
        out += ["", f'def {name}({", ".join(p + ": ArrayLike" for p in params)}) -> Any:'] + doc
        floats = ", floats=True" if row["kind"] == "elementwise float" else ""
        out += [f'    return _core.elementwise("{row["name"]}", {", ".join(params)}{floats})', ""]
        if row["name"] not in NO_METHOD:
            methods.append((name, params, row, floats))
    out += ["", "class ElementwiseMethods:", '    """The ops as methods of tensors."""', "", "    __slots__ = ()"]
    for name, params, row, floats in methods:
        out += ["", f'    def {name}(self{"".join(", " + p + ": ArrayLike" for p in params[1:])}) -> Tensor:',
                f'        """{row["doc"][0].upper() + row["doc"][1:]}."""',
                f'        return _core.elementwise("{row["name"]}", self{"".join(", " + p for p in params[1:])}{floats})']
    out += ["", "", "__all__ = [" + ", ".join(f'"{n}"' for n in names) + "]", ""]
    return "\n".join(out)
