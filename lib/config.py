"""
Make one checked config from defaults (a frozen dataclass), config files and --key=value. It works
like nanoGPT's configurator, but a misspelt name or a value of the wrong type is always an error.

    python train.py config/laptop.py config/b_ssmax.py --max_iters=100

A config file is plain Python whose top-level names are settings (names of helpers begin with "_").
It is executed, so use only files that you have read. Later files and arguments win.
"""
import ast
import dataclasses
import difflib
import inspect
import runpy
import sys
import types
import typing
from pathlib import Path

from lib.runtime import UserError, explain


def configure(cls, argv=None):
    """
    Return a `cls` (a frozen dataclass) made from the arguments `argv`, by default the program's.
    Its attribute `given` holds the names of the settings that the user gave, by an argument or in a
    config file.

    Arguments that end in .py are config files. Other arguments without "--" go to the field
    `files`, if `cls` has one. UserError for an unknown key, a wrong type or a bad file.
    """
    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(argv):  # before the other arguments, which may be wrong
        print(help_text(cls))
        sys.exit(0)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values = {}
    for arg in argv:  # in order: what comes later wins
        if arg.startswith("--"):
            key, equals, text = arg[2:].partition("=")
            if not equals and key in fields and fields[key].type is not bool:
                raise UserError(f"{arg} needs a value: write {arg}=value")
            text = text if equals else "True"  # --wandb_log alone means --wandb_log=True
            values[key] = checked(fields, key, text, arg, is_text=True)
        elif arg.endswith(".py"):
            if not Path(arg).is_file():
                raise UserError(f"there is no config file {arg}; check its name and folder")
            with explain(f"the config file {arg} fails"):  # the user's code may raise anything
                names = runpy.run_path(arg)
            for key, value in names.items():
                # everything is a setting but helpers (_name), modules, functions and classes
                is_code = callable(value) or isinstance(value, types.ModuleType)
                if not (is_code or key.startswith("_")):
                    values[key] = checked(fields, key, value, arg)
        elif "files" in fields:
            values["files"] = (*values.get("files", ()), arg)
        else:
            key = arg.lstrip("-").partition("=")[0]
            hint = f"did you mean --{arg.lstrip('-')}?" if key in fields else "see --help"
            raise UserError(f"{arg} is not an argument of this program: give config files (*.py) "
                            f"or --key=value; {hint}")
    try:
        cfg = cls(**values)
    except ValueError as e:  # from the dataclass's own check of its values
        raise UserError(str(e)) from e
    # tells a value that the user gave from a default that happens to be equal
    object.__setattr__(cfg, "given", frozenset(values))
    return cfg


def complete(cfg, **values):
    """Return a copy of `cfg` with these values, which the data or the machine decides. UserError if
    they do not go together."""
    try:
        completed = dataclasses.replace(cfg, **values)
    except ValueError as e:
        raise UserError(str(e)) from e
    object.__setattr__(completed, "given", cfg.given)
    return completed


def changed(cfg):
    """Return {name: value} of the settings that differ from their defaults."""
    values = {field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg)}
    return {f.name: values[f.name] for f in dataclasses.fields(cfg) if values[f.name] != f.default}


def checked(fields, key, value, origin, is_text=False):
    """
    Return `value` in the type that setting `key` has by default.

    origin: the argument or file that the value comes from, for messages. is_text: the value was
    typed. UserError for an unknown key or a bad value.
    """
    if key not in fields:
        near = difflib.get_close_matches(key, fields, n=1)
        hint = f"did you mean {near[0]}?" if near else "see --help"
        if origin.endswith(".py"):
            hint += " (the name of a helper must begin with _)"
        raise UserError(f"{origin}: unknown setting {key!r}; {hint}")
    want = type(fields[key].default)
    choices = typing.get_args(fields[key].type)  # of a Literal
    if is_text and want is not str:
        try:
            value = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass  # the value stays text, and the check of its type below refuses it
    if want is float and type(value) is int:  # 1.0 for an int is refused below: probably a mistake
        value = float(value)
    if want is tuple and type(value) is not tuple:
        value = tuple(value) if type(value) is list else (value,)  # one value is a tuple of one
    if type(value) is not want:
        example = {bool: "True or False", int: "a whole number such as 1000"}.get(want)
        advice = f"; write {example}" if example else ""
        raise UserError(f"{origin}: {key} must be of type {want.__name__}, not {value!r}{advice}")
    if choices and value not in choices:
        raise UserError(f"{origin}: {key}={value} must be one of "
                        f"{', '.join(filter(None, choices))}")
    if want in (int, float) and not value >= 0:  # no setting may be negative or NaN
        raise UserError(f"{origin}: {key}={value} must be a number that is not negative")
    if want is int and value >= 2**63:
        raise UserError(f"{origin}: {key}={value} must be below 2**63")
    if any("\0" in str(part) for part in (value if want is tuple else (value,))):
        raise UserError(f"{origin}: {key} holds a null character, which no file name may contain; "
                        "remove it")
    return value


def help_text(cls):
    """Return the text of --help: what the program does, then its settings in groups."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    groups = {}  # {heading: {name of a setting: its line}}
    # The comments are read from the source, so that each field is explained in one place. Parents
    # come first, because a child may explain a field again.
    for parent in reversed([c for c in cls.__mro__ if dataclasses.is_dataclass(c)]):
        group = "settings"
        for line in inspect.getsource(parent).partition("\n    def ")[0].splitlines():
            code, mark, comment = line.strip().partition("# ")
            name = code.partition(":")[0]
            if mark and not code:  # a comment on a line of its own is the heading of a group
                group = comment
            elif mark:
                home = group
                for heading, entries in groups.items():
                    if name in entries:  # explained again by a child: stays in its parent's group
                        home = heading
                head = f"  --{name}={fields[name].default}".replace("\n", "\\n")
                text = f"{head:<34}  {comment}"
                choices = ", ".join(filter(None, typing.get_args(fields[name].type)))
                if choices:
                    text += f" ({choices})"
                groups.setdefault(home, {})[name] = text
    lines = [(sys.modules[cls.__module__].__doc__ or "").strip(), "",
             "Settings with their defaults: give --key=value, or write key = value into a config "
             "file."]
    for group, entries in groups.items():
        lines += ["", f"{group}:", *entries.values()]
    return "\n".join(lines)
