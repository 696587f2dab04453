from .config import KubernetesConfig as KubernetesConfig
from .strategy import KubernetesExecutionStrategy as KubernetesExecutionStrategy
