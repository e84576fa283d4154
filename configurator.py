"""
Defaults (a frozen dataclass) + config files + --key=value -> one checked config. In the spirit of nanoGPT's configurator, but a
misspelt name or a value of the wrong type is an error wherever it stands, and `--help` prints every setting.

    python train.py config/b_ssmax.py config/laptop.py --max_iters=100

A config file is plain Python whose public top-level names are settings. It is executed: run only files you have read.
Later files and arguments win. A value is written as in Python, but a string needs no quotes.
"""
import ast
import dataclasses
import difflib
import inspect
import sys
import textwrap
import types

from runtime import UserError


def configure(cls, argv=None):
    """
    Make a `cls` (a frozen dataclass) from the command line `argv` (default: the program's).

    Arguments that end in `.py` are config files. Other arguments without `--` go, in order, to the field `files` (a tuple), where
    `cls` has one. Raises UserError with one line for an unknown key, a wrong type or a file that cannot be read.
    """
    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(argv):
        print(describe(cls))
        sys.exit(0)
    values, files = {}, []
    for arg in argv:
        if arg.startswith("--"):
            key, equals, text = arg[2:].partition("=")
            if not equals and key in fields(cls) and type(fields(cls)[key].default) is not bool:
                raise UserError(f"{arg} needs a value: write {arg}=value")
            values.update(check(cls, {key: text if equals else "True"}, arg, from_text=True))
        elif arg.endswith(".py"):
            values.update(check(cls, read_config_file(arg), arg))
        elif "files" in fields(cls):
            files.append(arg)
        else:
            raise UserError(f"{arg}: arguments are config files (*.py) or --key=value")
    if files:
        values["files"] = tuple(files)
    try:
        return cls(**values)
    except ValueError as e:  # the dataclass's own check of its values
        raise UserError(str(e)) from e


def fields(cls):
    return {f.name: f for f in dataclasses.fields(cls)}


def read_config_file(path):
    """Execute the file and return its public names, leaving out what it imported or defined as functions."""
    try:
        with open(path, encoding="utf-8") as f:
            code = compile(f.read(), path, "exec")
        names = {}
        exec(code, {"__file__": path, "__name__": "config"}, names)
    except OSError as e:
        raise UserError(f"config file {path}: {e.strerror}") from e
    except Exception as e:  # whatever the user's code raises is an error of that file
        raise UserError(f"config file {path}: {type(e).__name__}: {e}") from e
    return {k: v for k, v in names.items() if not (k.startswith("_") or isinstance(v, types.ModuleType) or callable(v))}


def check(cls, values, where, from_text=False):
    """Return `values` with each value in its field's type, or raise UserError."""
    known, checked = fields(cls), {}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "--help lists all settings"
            raise UserError(f"{where}: unknown setting {key!r}; {hint}")
        want = type(known[key].default)
        if from_text and want is not str:
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                pass  # stays text, and is refused below with the type that it should have
        if want is float and type(value) is int:
            value = float(value)
        if want is tuple and type(value) in (str, list):
            value = tuple(value) if type(value) is list else (value,)
        if type(value) is not want:
            raise UserError(f"{where}: {key} must be of type {want.__name__}, not {value!r}")
        if any("\0" in str(v) for v in (value if want is tuple else (value,))):
            raise UserError(f"{where}: {key} holds a null character, which no name of a file may")
        checked[key] = value
    return checked


def comments(cls):
    """The comment behind each field is its documentation: {field: comment}, for the class and its parents."""
    found = {}
    for c in reversed([c for c in cls.__mro__ if dataclasses.is_dataclass(c)]):
        for line in inspect.getsource(c).splitlines():
            name, colon, rest = line.strip().partition(":")
            if colon and name in fields(cls) and "  # " in rest:
                found[name] = rest.partition("  # ")[2]
    return found


def describe(cls):
    """The text of --help: what the program does, then one line a setting with its default."""
    program = sys.modules[cls.__module__]
    lines = [(program.__doc__ or "").strip(), "", "Settings (--key=value, or assignments in a config file):"]
    notes = comments(cls)
    for name, field in fields(cls).items():
        default = field.default.replace("\n", "\\n") if type(field.default) is str else field.default
        head = f"  --{name}={default if default != () else ''}"
        note = textwrap.wrap(notes.get(name, ""), 85) or [""]
        if len(head) > 34:
            lines, head = [*lines, head], ""
        lines += [f"{head:<34} {note[0]}", *(" " * 35 + line for line in note[1:])]
    return "\n".join(lines)
