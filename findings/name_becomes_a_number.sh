#!/usr/bin/env bash
# Hydra reads a setting that is declared as text as a number first: 3_5 is "35", 12e4567 is "inf"
# Versions: hydra-core 1.3.8, omegaconf 2.3.1.
# Guess: a field `name: str` of a structured config takes the text of the command line as it is. Types are declared so that
#   nothing is guessed.
# True: the value is parsed without a look at the field: digits with underscores are a number, as in Python, and so are
#   1.10, .5 and digits around an e. Then the number is turned into text for the field. Letters before it or quotes inside
#   quotes keep the text ("name='3_5'" with the shell's own quotes around it). OmegaConf.from_dotlist and from_cli read
#   YAML, and change 007, 1:30 and on as well.
# Hurt: folders of runs made from settings: layers 3_5 and 35 share one, as do all commits such as 12e4567: the second run
#   resumes the first one's checkpoint or writes over it. Versions 1.1 and 1.10 are one; dates lose their parts.
# Output seen:
#   typed         Hydra         folder             OmegaConf
#   3_5           35            runs/35            35
#   35            35            runs/35            35
#   12e4567       inf           runs/inf           inf
#   97e1234       inf           runs/inf           inf
#   1.10          1.1           runs/1.1           1.1
#   2024_01_15    20240115      runs/20240115      20240115
#   007           007           runs/007           7
#   1:30          1:30          runs/1:30          90
#   on            on            runs/on            True
#   v3_5          v3_5          runs/v3_5          v3_5
#   '3_5'         3_5           runs/3_5           3_5
. "$(dirname "$0")/common.sh"
venv hydra-core==1.3.8 omegaconf==2.3.1

"$python" - <<'PY'
from dataclasses import dataclass
from hydra import compose, initialize
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
@dataclass
class Settings:
    name: str = "base"
    folder: str = "runs/${name}"
ConfigStore.instance().store(name="settings", node=Settings)
expected = {"3_5": ("35", "35"), "35": ("35", "35"), "12e4567": ("inf", "inf"), "97e1234": ("inf", "inf"),
            "1.10": ("1.1", "1.1"), "2024_01_15": ("20240115", "20240115"), "007": ("007", "7"), "1:30": ("1:30", "90"),
            "on": ("on", "True"), "v3_5": ("v3_5", "v3_5"), "'3_5'": ("3_5", "3_5")}
print(f"{'typed':13} {'Hydra':13} {'folder':18} OmegaConf")
with initialize(version_base=None, config_path=None):
    for typed, names in expected.items():
        config = compose("settings", overrides=[f"name={typed}"])
        dotlist = OmegaConf.merge(OmegaConf.structured(Settings), OmegaConf.from_dotlist([f"name={typed}"]))
        print(f"{typed:13} {config.name:13} {config.folder:18} {dotlist.name}")
        assert (config.name, dotlist.name) == names and config.folder == f"runs/{config.name}"
        assert type(config.name) is type(dotlist.name) is str
PY
