"""
The documents of a corpus: text files, JSON lines, parquet files, or a dataset on the hub.

`datasets` reads the hub. We read files ourselves, because its readers take 2 to 15 times as long
(91.6 M characters: .jsonl.zst 2.2 s against 32, .parquet 3.7 s against 9.5 to 17, .txt 4.8 s
against 12 to 20), and hide errors: a .zst that is cut off is read without one, a number becomes a
text, a line without the field becomes None, and a syntax error comes without the name of its file.
"""
import io
import json
import os
import re
import reprlib

from lib.errors import MALFORMED, UserError, describe, explain
from lib.text import decode_file, find_files

PRESETS = {  # name@revision on the hub, which no longer has the paper's cerebras/SlimPajama-627B
    "slimpajama": "gmongaras/SlimPajama-627B_Reupload@c34c22dbb10ae6b264a2f357a909d1a537141b36",
    "slimpajama-6b": "DKYoon/SlimPajama-6B@b5f90f419b7489cdba26fdbc8c022fcb5562f968"}
INPUT = re.compile(r"\.(txt|md|jsonl?)(\.gz|\.zst)?$|\.parquet$", re.IGNORECASE)


def documents(cfg):
    """
    Yield (split, text) of each document in the files or the dataset that a PrepareConfig names, up
    to its limit; an empty one is "". UserError for a row without text, and for what cannot be read.
    """
    advice = "get a complete copy of this file, or unpack it (gzip -d, zstd -d --long=31)"
    if cfg.hf:
        sources = [(cfg.hf, hub_rows(cfg))]
        advice = f"check its name, --hf_config, --split={cfg.split} and the network"
    else:
        sources = [(path, file_rows(path, cfg)) for path in input_files(cfg)]
    n_documents = 0
    for name, rows in sources:
        # the hub, the network, packed files and pyarrow each raise exceptions of their own
        with explain(f"{name} cannot be read: {advice}; then run the same command again"):
            for number, row in enumerate(rows, start=1):
                text = row if type(row) is str else text_of(row, cfg.field, f"{name}:{number}")
                yield cfg.split, text if text.strip() else ""
                n_documents += 1
                if n_documents == cfg.limit:
                    return  # what comes after the limit is not read, so it cannot be an error


def input_files(cfg):
    """Return the files that the patterns in cfg.files match. UserError for an unusable one."""
    paths = [path for pattern in cfg.files for path in find_files(pattern)]
    for path in paths:
        if not INPUT.search(path):
            raise UserError(f"{path}: the name must end in .txt, .md, .jsonl, .json (each also "
                            ".gz or .zst) or .parquet; rename it to .txt if it is UTF-8 text")
    # a file that two patterns match, or that has two names, is read once, under its first name
    return list({os.path.realpath(path): path for path in reversed(paths)}.values())[::-1]


# The rows of a source. A row is a document: a str (a whole .txt), bytes (a line of JSON) or a dict
# with its text in cfg.field.


def hub_rows(cfg):
    import datasets  # late: it takes seconds
    name, _, revision = PRESETS.get(cfg.hf, cfg.hf).partition("@")
    yield from datasets.load_dataset(name, cfg.hf_config or None, revision=revision or None,
                                     split=cfg.split, streaming=True)


def file_rows(path, cfg):
    ending, packing = INPUT.search(path.lower()).groups()
    if not ending:
        yield from parquet_rows(path, cfg.field)
        return
    # pyarrow's stream raises an error if a .zst is cut off; that of `zstandard` just ends
    import pyarrow
    compression = {".gz": "gzip", ".zst": "zstd", None: None}[packing]
    with pyarrow.input_stream(path, compression=compression) as plain:
        file = io.BufferedReader(plain, 1 << 20)
        if ending in ("txt", "md"):
            yield decode_file(file.read(), path)
        else:
            yield from file


def parquet_rows(path, field):
    from pyarrow.parquet import ParquetFile  # late: most inputs do not need it
    with ParquetFile(path) as table:
        names = table.schema_arrow.names
        # without that column all are read, and text_of shows them in its message
        columns = [field] if field in names else None
        for batch in table.iter_batches(batch_size=1000, columns=columns):
            yield from batch.to_pylist()


def text_of(row, field, place):
    """Return the text in a field of a dict or of a line of JSON."""
    try:
        if type(row) is bytes:
            row = json.loads(row) if row.strip() else {field: None}
        text = "" if row[field] is None else row[field]
        # JSON may hold half a surrogate pair, which tokenizers refuse: it becomes U+FFFD
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except MALFORMED as e:
        raise UserError(f"{place}: {reprlib.repr(row)} has no text in its field {field!r} "
                        f"({describe(e)}); choose another --field, or repair or remove this row: "
                        """a line of .jsonl is one JSON object, such as {"text": "..."}""") from e
