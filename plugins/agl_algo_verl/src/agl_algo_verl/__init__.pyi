from .algorithm import VERL as VERL
from .config import VERLConfig as VERLConfig
