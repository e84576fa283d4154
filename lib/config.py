"""
Defaults (a frozen dataclass) + config files + --key=value -> one checked config. nanoGPT's
configurator, but a misspelt name or a value of the wrong type is an error wherever it stands.

    python train.py config/laptop.py config/b_ssmax.py --max_iters=100

A config file is plain Python whose top-level names are settings (helpers begin with "_"). It is
executed: run only files you have read. Later files and arguments win.
"""
import ast
import dataclasses
import difflib
import inspect
import sys
import textwrap
import types

from lib.runtime import UserError


def configure(cls, argv=None):
    """
    Make a `cls` (a frozen dataclass) from the command line `argv` (default: the program's own).

    Arguments that end in .py are config files. Others without "--" go, in order, to the field
    `files` (a tuple), where `cls` has one. UserError for an unknown key, a wrong type, a bad file.
    """
    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(argv):
        print(describe(cls))
        sys.exit(0)
    values, files = {}, []
    for arg in argv:
        if arg.startswith("--"):
            key, equals, text = arg[2:].partition("=")
            if not equals and key in fields(cls):
                if type(fields(cls)[key].default) is not bool:
                    raise UserError(f"{arg} needs a value: write {arg}=value")
                text = "True"  # --wandb_log alone
            values[key] = checked(cls, key, text, arg, is_text=True)
        elif arg.endswith(".py"):
            for key, value in read_config_file(arg).items():
                values[key] = checked(cls, key, value, arg)
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
    """Execute the file -> its names, but for helpers (_name), modules, functions and classes."""
    try:
        with open(path, encoding="utf-8") as f:
            code = compile(f.read(), path, "exec")
        names = {}
        exec(code, {"__file__": path, "__name__": "config"}, names)
    except OSError as e:
        raise UserError(f"config file {path}: {e.strerror}") from e
    except Exception as e:  # whatever the user's code raises is an error of that file
        raise UserError(f"config file {path}: {type(e).__name__}: {e}") from e
    return {
        name: value for name, value in names.items()
        if not (name.startswith("_") or isinstance(value, types.ModuleType) or callable(value))
    }


def checked(cls, key, value, where, is_text=False):
    """`value` in the type of the field `key`, or a UserError that names `where` it stands."""
    if key not in fields(cls):
        near = difflib.get_close_matches(key, fields(cls), n=1)
        hint = f"did you mean {near[0]}?" if near else "--help lists all settings"
        helper = "" if is_text else " (a helper's name begins with _)"
        raise UserError(f"{where}: unknown setting {key!r}; {hint}{helper}")
    want = type(fields(cls)[key].default)
    if is_text and want is not str:
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass  # stays text, and is refused below with the type that it should have
    if want is float and type(value) is int:
        value = float(value)
    if want is tuple and type(value) is not tuple:
        value = tuple(value) if type(value) is list else (value,)  # one value is a tuple of one
    if type(value) is not want:
        raise UserError(f"{where}: {key} must be of type {want.__name__}, not {value!r}")
    if any("\0" in str(part) for part in (value if want is tuple else (value,))):
        raise UserError(f"{where}: {key} holds a null character, which no file's name may")
    return value


def documentation(cls):
    """{field: (group, comment)}: the comment behind a field, under the last comment of its own."""
    found = {}
    for parent in reversed([c for c in cls.__mro__ if dataclasses.is_dataclass(c)]):
        group = "settings"
        for line in inspect.getsource(parent).splitlines():
            code, mark, comment = line.strip().partition("# ")
            name = code.partition(":")[0]
            if mark and not code:
                group = comment
            elif mark and name in fields(cls):
                found[name] = (group, comment)
    return found


def describe(cls):
    """The text of --help: what the program does, then its settings in groups, with defaults."""
    lines = [(sys.modules[cls.__module__].__doc__ or "").strip(), "",
             "Settings: --key=value, or assignments in a config file."]
    notes, groups = documentation(cls), {}
    for name, field in fields(cls).items():
        group, comment = notes.get(name, ("settings", ""))
        default = "" if field.default == () else str(field.default).replace("\n", "\\n")
        groups.setdefault(group, []).append((f"  --{name}={default}", comment))
    for group, entries in groups.items():
        lines += ["", f"{group}:"]
        for head, comment in entries:
            first, *rest = textwrap.wrap(comment, 64) or [""]
            lines += [f"{head:<34} {first}"] if len(head) < 35 else [head, " " * 35 + first]
            lines += [" " * 35 + line for line in rest]
    return "\n".join(lines)
