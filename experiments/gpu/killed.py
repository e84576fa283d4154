"""train.py, with rank 1 killed in update 31, for check.py."""
import os
import signal

import train
from lib import runtime


def main():
    learning_rate = train.learning_rate

    def die(cfg, step):
        if step == 30 and runtime.RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return learning_rate(cfg, step)

    train.learning_rate = die
    train.main()


if __name__ == "__main__":
    runtime.launch(main)
