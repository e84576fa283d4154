#!/usr/bin/env bash
# hydra, omegaconf and draccus: a setting that is declared as str goes through a number: 1.10 becomes '1.1'
# Versions: hydra-core 1.3.8, omegaconf 2.3.1, draccus 0.11.6, tyro 1.0.17.
# Guess: the field's type decides: `revision: str` gets the characters that were typed, as from argparse and tyro.
# True: the value is first read as YAML or by a grammar of its own, and then turned into a text again. Each of the three
#   changes other texts. Of short commit hashes (7 hexadecimal digits) hydra changes one in sixty, and one of the form
#   12e4567 becomes 'inf'. In hydra quotes help that the shell leaves: "revision='1.10'".
# Hurt: revisions, versions, run names and dates of checkpoints on the command line of trainers: version 1.1 is loaded
#   for 1.10, and runs 0012 and 10 write into one folder.
# Output seen:
#   typed       hydra          omegaconf      draccus        tyro
#   1.10        '1.1'          '1.1'          '1.1'          '1.10'
#   12e4567     'inf'          'inf'          '12e4567'      '12e4567'
#   0012        '0012'         '10'           '10'           '0012'
#   1_000       '1000'         '1000'         '1000'         '1_000'
#   12:30       '12:30'        '750'          '750'          '12:30'
#   true        'True'         'True'         'True'         'true'
#   short hashes that hydra changes: 1.6 %
. "$(dirname "$0")/common.sh"
venv hydra-core==1.3.8 omegaconf==2.3.1 draccus==0.11.6 tyro==1.0.17

"$python" - <<'PY'
import random
from dataclasses import dataclass
import draccus
import tyro
from hydra import compose, initialize
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

@dataclass
class Settings:
    revision: str = "main"

ConfigStore.instance().store(name="settings", node=Settings)

def by_hydra(text):
    with initialize(version_base=None, config_path=None):
        return compose("settings", overrides=[f"revision={text}"]).revision

programs = {
    "hydra": by_hydra,
    "omegaconf": lambda text: OmegaConf.merge(
        OmegaConf.structured(Settings), OmegaConf.from_cli([f"revision={text}"])).revision,
    "draccus": lambda text: draccus.parse(Settings, args=["--revision", text]).revision,
    "tyro": lambda text: tyro.cli(Settings, args=["--revision", text]).revision}
print("typed".ljust(12) + "".join(name.ljust(15) for name in programs).rstrip())
changed = set()
for text in ("1.10", "12e4567", "0012", "1_000", "12:30", "true"):
    read = {name: program(text) for name, program in programs.items()}
    print(text.ljust(12) + "".join(repr(value).ljust(15) for value in read.values()).rstrip())
    assert read["tyro"] == text
    changed |= {(name, text, value) for name, value in read.items() if value != text}
assert len(changed) == 15 and ("hydra", "1.10", "1.1") in changed and ("omegaconf", "12e4567", "inf") in changed

parser, rng, n = OverridesParser.create(), random.Random(0), 2000
hashes = [f"{rng.randrange(16**7):07x}" for _ in range(n)]
differ = sum(str(parser.parse_override(f"revision={each}").value()) != each for each in hashes)
print(f"short hashes that hydra changes: {100 * differ / n:.1f} %")
assert 0.01 < differ / n < 0.03
PY
