"""What becomes of errors: a failure that the user can fix is one line that says what to do."""
import contextlib
import errno
import os
import sys

# the errors of reading damaged or unexpected JSON
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class UserError(Exception):
    """A failure that the user can fix. Its message is one line: what is wrong, and what to do."""

    def __init__(self, message, status=2):
        super().__init__(message)
        self.status = status  # with which `launch` exits


def launch(main):
    """Run `main()` as a program. Foreseeable failures print one line on stderr and no traceback."""
    status, ends_together = 2, False
    for stream in (sys.stdout, sys.stderr):
        if "utf" not in stream.encoding.lower():
            stream.reconfigure(errors="replace")  # such a terminal shows ? in place of ±
    try:
        main()
        message, ends_together = None, True
    except UserError as e:
        message, status = str(e), e.status
        ends_together = status >= 128  # a signal: training stops on all ranks
    except KeyboardInterrupt:
        message, status = "interrupted", 130
    except BrokenPipeError:  # a reader such as `| head` has closed the pipe
        os._exit(141)
    except Exception as e:
        if out_of_memory(e):
            message = (f"out of memory ({describe(e)}); take a smaller model, a shorter context or "
                       "a smaller --micro_batch_size")
        elif isinstance(e, OSError) and e.strerror:  # no space, no permission, no such file
            message = f"{e.filename or 'operating system'}: {e.strerror}"
        else:
            raise  # a bug of ours keeps its traceback
    distributed = sys.modules.get("torch.distributed")
    # not after an error of this rank alone: NCCL might wait for the others, which wait for it
    if ends_together and distributed and distributed.is_initialized():
        distributed.destroy_process_group()
    if message is None:
        return
    sys.stdout.flush()  # in a pipe the error would otherwise come before earlier output
    prefix = "error: " if status < 128 else ""  # a signal is no error
    print(prefix + " ".join(message.split()), file=sys.stderr)
    sys.exit(status)


def out_of_memory(error):
    """Return whether this exception means that memory ran out, on a GPU or a CPU."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # CUDA, Triton and MPS; cuBLAS; torch on a CPU; oneDNN
    wordings = ("out of memory", "ALLOC_FAILED", "can't allocate memory",
                "could not create a primitive")
    torch_says_so = isinstance(error, RuntimeError) and any(
        words in str(error) for words in wordings)
    # torch is not imported here, because --help would wait for it
    is_named_so = type(error).__name__ == "OutOfMemoryError"
    return torch_says_so or isinstance(error, MemoryError) or is_named_so


def describe(error):
    """Return an exception's type and the beginning of its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@contextlib.contextmanager
def explain(message, errors=Exception, status=2):
    """Turn `errors` that are raised in the block into a UserError with `message`."""
    try:
        yield
    except errors as e:
        if isinstance(e, UserError) or out_of_memory(e):  # they have their own messages
            raise
        raise UserError(f"{message} ({describe(e)})", status) from e
