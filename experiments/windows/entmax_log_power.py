"""1.5-entmax with the factor of log_power.py, a row of the gallery: two attentions in one class."""
from gallery.entmax import Entmax
from gallery.log_power import LogPower


class EntmaxLogPower(Entmax, LogPower):
    pass
