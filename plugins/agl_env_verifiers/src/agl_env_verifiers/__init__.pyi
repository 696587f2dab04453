from .agent import VerifiersPlayer as VerifiersPlayer
from .dataset import TasksetView as TasksetView
from .environment import load as load
from .harness import ChatHarness as ChatHarness
