"""
Make one checked config from defaults (a frozen dataclass), config files and --key=value. It works
like nanoGPT's configurator, but a misspelt name or a value of the wrong type is always an error.

    python train.py config/laptop.py config/b_ssmax.py --max_iters=100

A config file is plain Python whose top-level names are settings. (Helpers are modules, functions,
classes, and names that begin with "_".) It is executed, so use only files that you have read. Later
files and arguments win.

A dataclass may have a table EFFECTIVE_IF, {setting: expression}: the setting has an effect only
where the expression is true. With None it never has one. `refuse_without_effect` has the rule for
it.
"""
import ast
import contextlib
import dataclasses
import difflib
import inspect
import os
import re
import runpy
import sys
import types
import typing
from pathlib import Path

from lib.errors import UserError, explain

# Settings that do not change a result, but for rounding: the paths of input and output (texts are
# compared by their digests), and how it is computed.
NOT_IN_A_RESULT = {
    "out_dir", "out", "overwrite", "data_dir", "data", "haystack", "micro_batch_size", "loss_chunk",
    "device", "compile", "eval_interval", "save_interval", "log_interval", "wandb_log",
    "wandb_project"}


def configure(cls, argv=None, config_files=True):
    """Return a `cls` (a frozen dataclass) made from `argv`, see `arguments`."""
    return make(cls, arguments(cls, argv, config_files))


def make(cls, given, defaults=()):
    """
    Return a `cls` with the settings `given`, {name: value}, and with `defaults` in the place of its
    own. UserError if the settings do not go together, or if a given one has no effect.
    """
    try:
        cfg = cls(**dict(defaults) | given)
    except ValueError as e:  # from the dataclass's own check of its values
        raise UserError(str(e)) from e
    refuse_without_effect(cfg, given)
    return cfg


def replaced(cfg, **values):
    """Return a copy of `cfg` with these values. UserError if they do not go together."""
    return make(type(cfg), {}, vars(cfg) | values)


def refuse_without_effect(cfg, given):
    """
    UserError if a setting in `given` has no effect. Later arguments may turn it off, as
    --decay=none does after a config file with decay_iters.
    """
    order = list(given)
    for key, condition in getattr(cfg, "EFFECTIVE_IF", {}).items():
        default = getattr(type(cfg), key)
        is_set = given.get(key, default) != default
        has_effect = condition and eval(condition, {}, vars(cfg))
        if not is_set or has_effect:
            continue
        others = set(re.findall(r"\w+", condition or "")) - {key}  # names in the condition
        given_later = {*order[order.index(key):]}
        if not others & given_later:
            where = f"unless {condition}; set what it needs, or" if condition else "here:"
            raise UserError(f"{key}={given[key]} has no effect {where} leave {key} out")


def changes(before, now):
    """Return texts of the settings in `now` that were not so before, as in "seed=1 (now 2)"."""
    return [f"{key}={before.get(key)!r} (now {value!r})" for key, value in now.items()
            if before.get(key) != value]


def non_defaults(cfg):
    """Return {name: value} of the settings that differ from their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(cfg)}
    return {name: value for name, value in vars(cfg).items() if value != defaults[name]}


def arguments(cls, argv=None, config_files=True):
    """
    Return {name: value} of the settings that `argv` names, even if they equal their defaults.

    Arguments that end in .py are config files, unless `config_files` is False. Other arguments
    without "--" go to the field `files`, if `cls` has one. UserError for an unknown key, a bad
    value or a bad file.
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
            new = {key: text if equals else "True"}  # --wandb_log alone means --wandb_log=True
        elif arg.endswith(".py") and config_files:
            new = read_config_file(arg)
        elif "files" in fields:
            new = {"files": (*values.get("files", ()), arg)}
        else:
            raise UserError(f"{arg} is not an argument of this program: give config files (*.py) "
                            "or --key=value; see --help")
        for key, value in new.items():
            values.pop(key, None)  # keeps the order of the last settings
            values[key] = checked(fields, key, value, arg)
    return values


def read_config_file(path):
    """Run a config file and return {name: value} of the settings in it."""
    if not Path(path).is_file():
        raise UserError(f"there is no config file {path}; check its name and folder")
    # the user's code may raise anything
    with explain(f"the config file {path} fails; an attention is named by --attention={path}"):
        names = runpy.run_path(path)
    # everything is a setting but helpers (_name), modules, functions and classes
    settings = {key: value for key, value in names.items() if not (
        key.startswith("_") or callable(value) or isinstance(value, types.ModuleType))}
    if not settings:
        raise UserError(f"{path} sets nothing, so it is no config file; an attention is named by "
                        f"--attention={path}")
    return settings


def checked(fields, key, value, origin):
    """
    Return `value` in the type of the default of setting `key`.

    fields: {name: field} of the dataclass. value: a text is parsed unless the setting is one.
    origin: the argument or file that the value comes from, for messages. UserError for an unknown
    key or a bad value.
    """
    if key not in fields:
        hint = did_you_mean(key, fields) or "; see --help"
        if origin.endswith(".py"):
            hint += " (the name of a helper must begin with _)"
        raise UserError(f"{origin}: unknown setting {key!r}{hint}")
    want = type(fields[key].default)
    value = to_type(value, want)
    if type(value) is not want:
        example = {bool: "True or False", int: "a whole number such as 1000"}.get(want)
        advice = f"; write {example}" if example else ""
        raise UserError(f"{origin}: {key} must be of type {want.__name__}, not {value!r}{advice}")
    choices = typing.get_args(fields[key].type)  # of a Literal
    if choices and value not in choices:
        named = list(filter(None, choices))
        raise UserError(f"{origin}: {key}={value} must be one of {', '.join(named)}"
                        f"{did_you_mean(value, named)}")
    if key == "out_dir" and not value:  # --out_dir=$UNSET
        raise UserError(f"{origin}: out_dir must name a folder")
    if want in (int, float) and not 0 <= value < 2**63:  # 1e999 is infinity
        raise UserError(f"{origin}: {key}={value} must be a number that is not negative, and "
                        "below 2**63")
    return value


def to_type(value, want):
    """Return `value` in the type `want`, or as it is if that is not possible."""
    if isinstance(value, str) and want is not str:
        with contextlib.suppress(ValueError, TypeError, SyntaxError):
            value = ast.literal_eval(value)
    # 1 is accepted for a float. But 1.0 for an int is refused: it is probably a mistake.
    if want is float and type(value) is int and value < 2**63:
        return float(value)
    if want is tuple:
        parts = value if isinstance(value, list | tuple) else [value]
        return tuple(to_type(part, str) for part in parts)
    # a shell replaces ~ only where an argument begins, and not in --out_dir=~/runs
    if isinstance(value, str) and value.startswith("~/"):
        return os.path.expanduser(value)
    return value


def did_you_mean(name, names):
    """Return "; did you mean ...?" with the nearest of `names`, or ""."""
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def help_text(cls):
    """Return the text of --help: what the program does, and its settings as their source has them.
    """
    lines = [(sys.modules[cls.__module__].__doc__ or "").strip(), "",
             "Settings with their defaults: give --key=value, or write key = value into a config "
             "file."]
    sections = {}  # {heading: {setting: its line}}; a subclass has the last word
    for parent in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        fields = re.split(r"\n    (?:def|EFFECTIVE_IF) ", inspect.getsource(parent))[0]
        for line in map(str.strip, fields.splitlines()):
            if line.startswith("# "):
                section = sections.setdefault(line, {})
            elif "# " in line:
                section[line.partition(":")[0]] = line
    conditions = getattr(cls, "EFFECTIVE_IF", {})
    never = {name for name, condition in conditions.items() if condition is None}
    for heading, section in sections.items():
        lines += [heading, *(line for name, line in section.items() if name not in never)]
    choices = [f"{field.name}: {', '.join(filter(None, typing.get_args(field.type)))}"
               for field in dataclasses.fields(cls)
               if typing.get_args(field.type) and field.name not in never]  # a Literal
    if choices:
        lines += ["# names to choose from", *choices]
    return "\n".join(lines)
