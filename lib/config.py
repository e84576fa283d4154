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
import runpy
import sys
import types
import typing

from lib.runtime import UserError, explain


def configure(cls, argv=None):
    """
    Make a `cls` (a frozen dataclass) from the command line `argv` (default: the program's own).
    Its `given` are the names of the settings that were typed or stand in a config file.

    Arguments that end in .py are config files, others without "--" go to the field `files` where
    `cls` has it. UserError for an unknown key, a wrong type, a bad file.
    """
    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(argv):  # first: it helps where other arguments are wrong
        print(help_text(cls))
        sys.exit(0)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values = {}
    for arg in argv:  # in order: what comes later wins
        if arg.startswith("--"):
            key, equals, text = arg[2:].partition("=")
            if not equals and key in fields and fields[key].type is not bool:
                raise UserError(f"{arg} needs a value: write {arg}=value")
            text = text if equals else "True"  # --wandb_log alone
            values[key] = checked(fields, key, text, arg, is_text=True)
        elif arg.endswith(".py"):
            with explain(f"the config file {arg} fails"):  # whatever the user's code raises
                names = runpy.run_path(arg)
            for key, value in names.items():
                # helpers (_name), modules, functions and classes are no settings
                code = callable(value) or isinstance(value, types.ModuleType)
                if not (code or key.startswith("_")):
                    values[key] = checked(fields, key, value, arg)
        elif "files" in fields:
            values["files"] = (*values.get("files", ()), arg)
        else:
            raise UserError(f"{arg}: arguments are config files (*.py) or --key=value")
    try:
        cfg = cls(**values)
    except ValueError as e:  # the dataclass's own check of its values
        raise UserError(str(e)) from e
    # so that a value that was typed can be told from a default that it equals
    object.__setattr__(cfg, "given", frozenset(values))
    return cfg


def complete(cfg, **values):
    """A copy of `cfg` in which settings have the values that follow from the data."""
    completed = dataclasses.replace(cfg, **values)
    object.__setattr__(completed, "given", cfg.given)
    return completed


def checked(fields, key, value, where, is_text=False):
    """`value` in the type of the default of `key`, or a UserError that names `where` it stands."""
    if key not in fields:
        near = difflib.get_close_matches(key, fields, n=1)
        hint = f"did you mean {near[0]}?" if near else "see --help (_ begins a helper's name)"
        raise UserError(f"{where}: unknown setting {key!r}; {hint}")
    want = type(fields[key].default)
    choices = typing.get_args(fields[key].type)  # of a Literal
    if is_text and want is not str:
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass  # stays text, and is refused below with the type that it should have
    if want is float and type(value) is int:  # 1 for 1.0; the reverse may be a slip, so refused
        value = float(value)
    if want is tuple and type(value) is not tuple:
        value = tuple(value) if type(value) is list else (value,)  # one value is a tuple of one
    if type(value) is not want:
        raise UserError(f"{where}: {key} must be of type {want.__name__}, not {value!r}")
    if choices and value not in choices:
        raise UserError(f"{where}: {key} must be one of {', '.join(filter(None, choices))}")
    if want in (int, float) and not value >= 0:  # no setting has a use for it; NaN is not either
        raise UserError(f"{where}: {key} must not be negative")
    if any("\0" in str(part) for part in (value if want is tuple else (value,))):
        raise UserError(f"{where}: {key} holds a null character, which no file's name may")
    return value


def help_text(cls):
    """The text of --help: what the program does, then its settings in groups, with defaults."""
    fields, groups = {f.name: f for f in dataclasses.fields(cls)}, {}
    # from the source, so that a field is explained once; a parent's first, which a child overrides
    for parent in reversed([c for c in cls.__mro__ if dataclasses.is_dataclass(c)]):
        group = "settings"
        for line in inspect.getsource(parent).partition("\n    def ")[0].splitlines():
            code, mark, comment = line.strip().partition("# ")
            name = code.partition(":")[0]
            if mark and not code:  # a comment of its own line heads those below
                group = comment
            elif mark:
                home = next((known for known in groups if name in groups[known]), group)
                choices = ", ".join(filter(None, typing.get_args(fields[name].type)))
                head = f"  --{name}={fields[name].default}".replace("\n", "\\n")
                text = f"{head:<34}  {comment}" + f" ({choices})" * bool(choices)
                groups.setdefault(home, {})[name] = text
    lines = [(sys.modules[cls.__module__].__doc__ or "").strip(), "",
             "Settings: --key=value, or assignments in a config file."]
    for group, entries in groups.items():
        lines += ["", f"{group}:", *entries.values()]
    return "\n".join(lines)
