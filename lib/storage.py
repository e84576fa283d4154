"""Writing files all or nothing, locks, and .jsonl."""
import contextlib
import fcntl
import json
import os
from pathlib import Path

from lib import ranks
from lib.errors import UserError, explain


def writing(path):
    """Return a context in which a failed write is a UserError that names the file."""
    return explain(f"cannot write {path}; what was there stays; make space or choose another "
                   "folder", OSError)


@contextlib.contextmanager
def atomic_write(path, mode="wb"):
    """Open a temporary file beside `path`, which replaces it if the block ends without an error."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as f:
                yield f
                f.flush()
                os.fsync(f.fileno())  # after a power cut the file could otherwise be empty
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


LOCKS = {}  # {path: the open file that holds its lock}


def lock(path):
    """
    Keep other programs from writing the file or folder `path` until this process ends or is killed.
    UserError if another program writes it now. A program takes its locks before it reads what they
    protect: what it has checked then stays true.
    """
    path = Path(path).absolute()
    if ranks.RANK != 0 or path in LOCKS:
        return
    # The hidden file is never removed: another program may have opened it and be about to lock it,
    # and a third would then lock a new file of that name.
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path.with_name(f".{path.name}.lock"), "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another program is writing {path}: wait until it ends, or choose another "
                        "folder") from None
    except OSError:  # some network disks have no locks
        pass
    LOCKS[path] = file


def write_lines(path, records):
    """Write a .jsonl with one record a line, or a .json with a single one, all or nothing."""
    with atomic_write(path, "w") as f:
        f.writelines(json.dumps(record) + "\n" for record in records)


def append_lines(file, records):
    """Append records to an open .jsonl, one a line."""
    with writing(file.name):
        file.writelines(json.dumps(record) + "\n" for record in records)
        file.flush()


def read_lines(path):
    """Return the records of a .jsonl. A last line that a kill has cut short is ignored."""
    with explain(f"{path} is damaged; move it away", ValueError):
        lines, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        return json.loads(f"[{lines.replace(chr(10), ',')}]")  # line by line takes longer by half
