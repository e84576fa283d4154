"""The documents of a corpus: text files, JSON lines, parquet files, or a dataset on the hub."""
import io
import itertools
import json
import os
import re
import reprlib
import sys

from tqdm import tqdm

from lib.errors import UserError, describe, explain
from lib.text import decode_file, find_files

PRESETS = {  # name@revision on the hub, which no longer has the paper's cerebras/SlimPajama-627B
    "slimpajama": "gmongaras/SlimPajama-627B_Reupload@c34c22dbb10ae6b264a2f357a909d1a537141b36",
    "slimpajama-6b": "DKYoon/SlimPajama-6B@b5f90f419b7489cdba26fdbc8c022fcb5562f968"}
INPUT = re.compile(r"\.(txt|md|jsonl?)(\.gz|\.zst)?$|\.parquet$", re.IGNORECASE)


def documents(cfg, skip=0):
    """
    Yield the text of each row of the files or of the dataset that a PrepareConfig names, up to its
    limit. The text is "" if the row has none, or if it is bad and cfg.skip_bad leaves it out. Any
    other bad row is a UserError.

    skip: the number of rows at the beginning that an earlier run has read.
    """
    n_bad = 0
    for name, number, row in itertools.islice(input_rows(cfg), skip, cfg.limit or None):
        try:
            text = text_of(row, cfg.field)
        except ValueError as e:
            problem = f"{name}:{number}: {e}"
            if not cfg.skip_bad:
                raise UserError(f"{problem}; --skip_bad leaves bad lines out") from e
            text = ""
            n_bad += 1
            if n_bad <= 10:
                tqdm.write(f"left out: {problem}", file=sys.stderr)
        yield text


# -----------------------------------------------------------------------------
# files or dataset -> rows. A row is a line of JSON (bytes) or a dict with its text in `field`.


def input_files(cfg):
    """Return the files that the patterns in cfg.files match. UserError for an unusable one."""
    paths = [path for pattern in cfg.files for path in find_files(pattern)]
    for path in paths:
        if not INPUT.search(path):
            raise UserError(f"{path}: the name must end in .txt, .md, .jsonl, .json (each also "
                            ".gz or .zst) or .parquet; rename it to .txt if it is UTF-8 text")
    # a file that two patterns match is read once
    by_real_path = {os.path.realpath(path): path for path in paths}
    return list(by_real_path.values())


def input_rows(cfg):
    """Yield (file or dataset, number of the row in it, row) for each row of the input."""
    if cfg.hf:
        # the hub, the network and the file readers each raise exceptions of their own
        with explain(f"{cfg.hf} cannot be read; check its name, --hf_config, --split={cfg.split} "
                     "and the network, then run the same command again"):
            for number, row in enumerate(hub_rows(cfg), start=1):
                yield cfg.hf, number, row
        return
    for path in input_files(cfg):
        with explain(f"{path} is incomplete or damaged, or not compressed as its name says: get a "
                     "whole copy of it, or unpack it first (gzip -d, zstd -d --long=31)"):
            for number, row in enumerate(file_rows(path, cfg.field), start=1):
                yield path, number, row


def hub_rows(cfg):
    import datasets  # late: it takes seconds
    name, _, revision = PRESETS.get(cfg.hf, cfg.hf).partition("@")
    return datasets.load_dataset(name, cfg.hf_config or None, revision=revision or None,
                                 split=cfg.split, streaming=True)


def file_rows(path, field):
    ending, packing = INPUT.search(path.lower()).groups()
    if not ending:
        yield from parquet_rows(path, field)
        return
    # pyarrow's stream raises an error if a .zst is cut off; that of `zstandard` just ends
    import pyarrow
    compression = {".gz": "gzip", ".zst": "zstd", None: None}[packing]
    with pyarrow.input_stream(path, compression=compression) as plain:
        lines = io.BufferedReader(plain, 1 << 20)
        if ending in ("txt", "md"):
            text = decode_file(lines.read(), path)
            if "<|endoftext|>" in text:
                tqdm.write(f"{path}: <|endoftext|> is ordinary text and ends no document; make the "
                           "file a .jsonl if it holds several documents", file=sys.stderr)
            yield {field: text}
        else:
            yield from lines


def parquet_rows(path, field):
    from pyarrow.parquet import ParquetFile  # late: most inputs do not need it
    with ParquetFile(path) as table:
        names = table.schema_arrow.names
        if names.count(field) > 1:  # a row is a dict, which holds only the last of them
            raise UserError(f"{path} has {names.count(field)} columns named {field!r}; write it "
                            "again with the one that holds the text")
        # without that column all are read, and text_of names them in its message
        columns = [field] if field in names else None
        for batch in table.iter_batches(batch_size=1000, columns=columns):
            yield from batch.to_pylist()


# -----------------------------------------------------------------------------
# row -> text


def text_of(row, field):
    """Return the text of a row, "" if it is empty. The ValueError for a bad row says why."""
    if type(row) is bytes:
        row = parse_line(row) if row.strip() else {field: ""}
    if field not in row:
        raise ValueError(f"there is no field {field!r}, only {', '.join(row) or 'none'}; choose "
                         "one with --field")
    text = "" if row[field] is None else row[field]
    if type(text) is not str:
        raise ValueError(f"the field {field!r} holds {reprlib.repr(text)}, which is not text; "
                         "choose the field with the text with --field")
    # JSON may hold half a surrogate pair, which tokenizers refuse: it becomes U+FFFD
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text if text.strip() else ""


def parse_line(line):
    """Return the dict in a line of JSON. The ValueError for any other line says what it is."""
    try:
        row = json.loads(line)
        problem = f"it is a {type(row).__name__}"
    except (ValueError, RecursionError) as e:
        row, problem = None, describe(e)
    if type(row) is not dict:
        raise ValueError(f"{problem}; each line must be one JSON object, such as "
                         """{"text": "..."}; from an array: jq -c '.[]' FILE > NEW.jsonl""")
    return row
