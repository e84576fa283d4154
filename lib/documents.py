"""The documents of a corpus: text files, JSON lines, parquet files, or a dataset on the hub."""
import hashlib
import io
import json
import os
import re
import reprlib
import sys

from tqdm import tqdm

from lib.errors import UserError, describe, explain
from lib.text import decode_file, matching_files

PRESETS = {  # name@revision on the hub, which no longer has the paper's cerebras/SlimPajama-627B
    "slimpajama": "gmongaras/SlimPajama-627B_Reupload@c34c22dbb10ae6b264a2f357a909d1a537141b36",
    "slimpajama-6b": "DKYoon/SlimPajama-6B@b5f90f419b7489cdba26fdbc8c022fcb5562f968"}
INPUT = re.compile(r"\.(txt|md|jsonl?)(\.gz|\.zst)?$|\.parquet$", re.IGNORECASE)


def documents(cfg, n_rows=0, n_documents=0):
    """
    Yield the text of each row of the files or of the dataset that a PrepareConfig names. It is ""
    if the row has no text, or if it is bad and cfg.skip_bad leaves it out. Any other bad row is a
    UserError.

    n_rows: rows to skip, which an earlier run has read; n_documents: how many of them had text.
    """
    n_bad = 0
    for name, number, row in input_rows(cfg, n_rows):
        if cfg.limit and n_documents == cfg.limit:
            return
        try:
            text = text_of(row, cfg.field)
            if text:
                n_documents += 1
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
    """Return the paths that the patterns in cfg.files match. UserError for an unusable one."""
    paths = [path for pattern in cfg.files for path in matching_files(pattern)]
    for path in paths:
        if not os.path.isfile(path):
            raise UserError(f"{path} is not a file; name files of text, as in 'my_texts/*.txt'")
        if not INPUT.search(path):
            raise UserError(f"{path}: the name must end in .txt, .md, .jsonl, .json (each also "
                            ".gz or .zst) or .parquet; rename it to .txt if it is UTF-8 text")
    # a file that two patterns match is read once
    by_real_path = {os.path.realpath(path): path for path in paths}
    return list(by_real_path.values())


def hash_files(paths):
    """Return one digest of the names and contents of files, in their order."""
    digest = hashlib.sha256()
    for path in tqdm(paths, "hashing the files", unit=" files", delay=5, leave=False):
        # without the folder: the same files on another machine give the same corpus
        digest.update(f"{os.path.basename(path)} {os.path.getsize(path)}".encode())
        with open(path, "rb") as f:
            while block := f.read(2**20):  # an edit need not change the size
                digest.update(block)
    return digest.hexdigest()[:16]


def file_rows(path, field):
    ending, packing = INPUT.search(path.lower()).groups()
    if not ending:
        from pyarrow.parquet import ParquetFile  # late: most inputs do not need it
        with ParquetFile(path) as table:
            names = table.schema_arrow.names
            if names.count(field) > 1:  # a row is a dict, which holds only the last of them
                raise UserError(f"{path} has {names.count(field)} columns named {field!r}; write "
                                "it again with the one that holds the text")
            # without that column all are read, and text_of names them in its message
            columns = [field] if field in names else None
            for batch in table.iter_batches(batch_size=1000, columns=columns):
                yield from batch.to_pylist()
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


def input_rows(cfg, skip):
    """Yield (file or dataset, number of the row in it, row) for each row after the first `skip`."""
    if cfg.hf:
        # the hub, the network and the file readers each raise exceptions of their own
        with explain(f"{cfg.hf} cannot be read; check its name, --hf_config, --split={cfg.split} "
                     "and the network, then run the same command again"):
            import datasets  # late: it takes seconds
            name, _, revision = PRESETS.get(cfg.hf, cfg.hf).partition("@")
            rows = datasets.load_dataset(name, cfg.hf_config or None, revision=revision or None,
                                         split=cfg.split, streaming=True)
            for number, row in enumerate(rows.skip(skip), start=skip + 1):
                yield cfg.hf, number, row
    for path in input_files(cfg):
        with explain(f"{path} is incomplete or damaged, or not compressed as its name says: get a "
                     "whole copy of it, or unpack it first (gzip -d, zstd -d --long=31)"):
            for number, row in enumerate(file_rows(path, cfg.field), start=1):
                if skip:
                    skip -= 1
                else:
                    yield path, number, row


# -----------------------------------------------------------------------------
# row -> text


def text_of(row, field):
    """Return the text of a row, "" if it is empty. The ValueError for a bad row says why."""
    if type(row) is bytes:
        try:
            row = json.loads(row) if row.strip() else {field: ""}
            problem = f"it is a {type(row).__name__}"
        except (ValueError, RecursionError) as e:
            problem = describe(e)
        if type(row) is not dict:
            raise ValueError(f"{problem}; each line must be one JSON object, such as "
                             """{"text": "..."}; from an array: jq -c '.[]' FILE > NEW.jsonl""")
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
